"""The orders in which optimizers list parameters: ranks, and scripts that go on, may have others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from typing import Any, TypeAlias

from torch import Tensor

from relaxcomm.errors import ConfigError
from relaxcomm.replica.replica import Replica

Listed: TypeAlias = Sequence[Sequence[str]]
"""Names of the parameters of each group of an optimizer."""


def listed(replica: Replica) -> list[Listed]:
    """How each of the optimizers lists its parameters; those that are not the model's are numbered."""
    names = replica.names
    return [[_named(group["params"], names) for group in one.param_groups] for one in replica.optimizers]


def _named(parameters: Iterable[Tensor], names: Mapping[Tensor, str]) -> list[str]:
    others = (f"none, number {number}" for number in count())
    return [names[p] if p in names else next(others) for p in parameters]


def counterparts(ours: Sequence[Listed], theirs: Sequence[Listed], whose: str) -> list[int]:
    """Where, for each optimizer here, the one is there whose groups hold the same parameters.

    Args:
        ours: how those here list their parameters.
        theirs: how those there do.
        whose: they are, for an error.

    Raises: ConfigError where there is none.
    """
    found = _places(tuple(sorted(map(_key, one))) for one in theirs)
    places = []
    for one, key in zip(ours, _numbered(tuple(sorted(map(_key, one))) for one in ours), strict=True):
        if key not in found:
            raise ConfigError(
                f"{whose} has no optimizer whose groups hold {[len(names) for names in one]} parameters as "
                f"here, such as {next(chain.from_iterable(one), 'none')}; group parameters as it does"
            )
        places.append(found[key])
    return places


def as_listed(replica: Replica, ours: Listed, theirs: Listed, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of an optimizer's counterpart, with groups, parameters and their indices in the order here.

    Torch's optimizers load the state of a parameter by its place in the groups.

    Raises: ConfigError for a state of another form, which stays as it is where both list parameters alike.
    """
    if ours == theirs:
        return state
    sizes = {name: parameter.numel() for parameter, name in replica.names.items()}
    if (other := _by_place(state, theirs, sizes)) is not None:
        raise ConfigError(
            f"the state of an optimizer has {other}, not all of it in torch's state and param_groups by the "
            "indices of parameters, which are listed in another order than here; list them alike on all "
            "ranks, and as they were saved"
        )
    free = chain.from_iterable(group["params"] for group in state["param_groups"])
    found = _places(map(_key, theirs))
    groups, moved = [], dict[int, int]()
    for names, key in zip(ours, _numbered(map(_key, ours)), strict=True):
        group = state["param_groups"][found[key]]
        indices = list(islice(free, len(names)))
        were = dict(zip(theirs[found[key]], group["params"], strict=True))
        moved.update(zip((were[name] for name in names), indices, strict=True))
        groups.append({**group, "params": indices})
    held = {moved.get(index, index): values for index, values in state["state"].items()}
    return {**state, "state": held, "param_groups": groups}


def _by_place(state: Mapping[str, Any], names: Listed, sizes: Mapping[str, int]) -> str | None:
    """What a state keeps by the places of parameters, not by their indices, as far as that can be told."""
    own = [value for key, value in state.items() if key not in ("state", "param_groups")]
    if not has_torchs_form(state, names) or not all(map(_is_of_no_parameter, own)):
        return str(sorted(map(str, state)))
    held, groups = state["state"], state["param_groups"]
    beside = {index: values for index, values in held.items() if not isinstance(index, int)}
    for key, value in chain.from_iterable(one.items() for one in (*groups, beside)):
        if _has_entries(value):
            return f"{key!r}, with tensors of no parameter"
    for group, members in zip(groups, names, strict=True):
        whole = sum(sizes.get(name, 0) for name in members)
        for index, name in zip(group["params"], members, strict=True):
            own_size = sizes.get(name, whole)
            for key, value in held.get(index, {}).items():  # of all at the first, flat (LBFGS) or stacked
                if isinstance(value, Tensor) and own_size < value.numel() == whole:
                    return f"{key!r} of {whole} entries for the {own_size} of {name}"
    return None


def _has_entries(value: Any) -> bool:
    """Whether a tensor with entries is anywhere in a value."""
    if isinstance(value, Tensor):
        return value.dim() > 0
    parts = value.values() if isinstance(value, Mapping) else value
    return isinstance(value, Mapping | list | tuple) and any(map(_has_entries, parts))


def _is_of_no_parameter(value: object) -> bool:
    """Whether it is a number or text, or such by names."""
    if isinstance(value, Mapping):
        return all(map(_is_of_no_parameter, value.values()))
    return isinstance(value, int | float | str | None) or (isinstance(value, Tensor) and not value.dim())


def groups_alike(ours: Listed, theirs: Listed) -> bool:
    """Whether both list their groups in one order; parameters in a group may be in any."""
    return list(map(_key, ours)) == list(map(_key, theirs))


def has_torchs_form(state: Mapping[str, Any], names: Listed) -> bool:
    """Whether an optimizer's state is by the indices of its parameters, as those of torch's are."""
    held, groups = state.get("state"), state.get("param_groups")
    if not isinstance(held, Mapping) or not isinstance(groups, list):
        return False
    if not all(isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in groups):
        return False
    return [len(group["params"]) for group in groups] == [len(one) for one in names] and all(
        isinstance(values, Mapping) for index, values in held.items() if isinstance(index, int)
    )


def _key(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(names))


def _places(keys: Iterable[Hashable]) -> dict[tuple[Hashable, int], int]:
    return {key: place for place, key in enumerate(_numbered(keys))}


def _numbered(keys: Iterable[Hashable]) -> Iterator[tuple[Hashable, int]]:
    """Each with how many equal ones come before it: the k-th here is the k-th there."""
    seen = Counter[Hashable]()
    for key in keys:
        yield key, seen[key]
        seen[key] += 1
