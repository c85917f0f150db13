"""States of optimizers that one rank sends to others, who may list the same parameters in other orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from torch.optim import Optimizer

from relaxcomm.errors import ConfigError
from relaxcomm.replica.replica import Replica
from relaxcomm.replica.sharding import load_held

_Listed: TypeAlias = Sequence[Sequence[str]]
"""Names of the parameters of each group."""
Sent: TypeAlias = Sequence[tuple[_Listed, Mapping[str, Any]]]
"""Of each optimizer its parameters' names and its state."""


def states(replica: Replica) -> Sent:
    """The states of this rank's optimizers."""
    return [(_listed(replica, one), one.state_dict()) for one in replica.optimizers]


def load(replica: Replica, sent: Sent) -> None:
    """Have the optimizers go on from what another rank has sent, parameter by parameter.

    Raises: ConfigError where that has other groups.
    """
    for one in replica.optimizers:
        load_held(one, _as_listed(_listed(replica, one), sent))


def _listed(replica: Replica, optimizer: Optimizer) -> _Listed:
    names = {item.parameter: item.name for item in (*replica.parameters, *replica.frozen)}
    return [[names[p] for p in group["params"]] for group in optimizer.param_groups]


def _as_listed(ours: _Listed, sent: Sent) -> dict[str, Any]:
    """The state of the optimizer with the same groups, which are put in this order, as their parameters are.

    Torch's optimizers load the state of a parameter by its place in the groups.
    """
    wanted = sorted(map(sorted, ours))
    found = next((one for one in sent if sorted(map(sorted, one[0])) == wanted), None)
    if found is None:
        raise ConfigError(
            f"no other rank has an optimizer whose groups hold {[len(one) for one in ours]} parameters as "
            f"here, such as {next(chain.from_iterable(ours), 'none')}; group parameters alike on all ranks"
        )
    theirs, state = found
    groups = []
    for names in ours:
        at = [sorted(one) for one in theirs].index(sorted(names))
        places = dict(zip(theirs[at], state["param_groups"][at]["params"], strict=True))
        groups.append({**state["param_groups"][at], "params": [places[name] for name in names]})
    return {**state, "param_groups": groups}
