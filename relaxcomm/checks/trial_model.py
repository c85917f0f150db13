"""The linear model of a trial, with the parameters that an algorithm selects by name."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from relaxcomm.composition import fragments
from relaxcomm.composition.algorithm import Algorithm

_NAMES = ("weight", "bias")
_WILD = re.compile(r"\[([^!])[^]]*\]|\[![^]]*\]|[*?]")
_FILLS = "ab"


def trial_model(algorithm: Algorithm, inputs: int, outputs: int) -> nn.Module:
    """A linear layer, in as many parameters as the algorithm needs, with names that its rules select.

    Where the rules can select one name only, the bias is frozen.

    Args:
        algorithm: its rules' patterns, such as `"encoder.*"`, are for a model that is not here.
        inputs: number of them.
        outputs: number of them.

    Example:
        >>> from relaxcomm import Rule
        >>> from relaxcomm.primitives import all_reduce, gradients
        >>> rule = Rule(payload=gradients(), exchange=all_reduce(), select=["head.*", "body.?"])
        >>> [name for name, _ in trial_model(Algorithm((rule,), name="one"), 3, 4).named_parameters()]
        ['head.a', 'head.b', 'body.a', 'body.b']
    """
    names = _names(algorithm) or _NAMES  # that attach refuses, in words
    whole = nn.Linear(inputs, outputs)
    if len(names) == 1:
        nn.init.zeros_(whole.bias).requires_grad_(False)
        return _Pieces(whole, (*names, f"frozen_{names[0]}"))
    return whole if names == _NAMES else _Pieces(whole, names)


def _names(algorithm: Algorithm) -> tuple[str, ...]:
    """Names of parameters: the usual ones that any rule covers, and some that each pattern matches."""
    patterns = [one for rule in algorithm.rules for one in rule.select or ()]
    count = fragments.most(patterns)
    named = [one for one in patterns if not fragments.is_fragment(one)]
    found = [name for name in _NAMES if count or any(rule.covers(name) for rule in algorithm.rules)]
    for pattern, fill in itertools.product(named, _FILLS):
        name = _matching(pattern, fill)
        usual = any(fnmatch.fnmatchcase(one, pattern) for one in _NAMES)
        if not usual and fnmatch.fnmatchcase(name, pattern) and _is_free(name, found):
            found.append(name)
    others = [f"layer_{index}" for index in range(count - len(found))]
    return *found, *others


def _is_free(name: str, found: Iterable[str]) -> bool:
    """Whether a module can have a parameter of this name beside others: none is `head` and `head.a`."""
    own = any(not part or hasattr(nn.Module(), part) for part in name.split("."))
    return not own and not any(f"{name}.".startswith(f"{o}.") or o.startswith(f"{name}.") for o in found)


def _matching(pattern: str, fill: str) -> str:
    return _WILD.sub(lambda wild: wild[1] or fill, pattern)


class _Pieces(nn.Module):
    """A linear layer whose weight is cut into pieces, which come before the bias in the model's order."""

    def __init__(self, whole: nn.Linear, names: tuple[str, ...]) -> None:
        super().__init__()
        for name in names:
            *path, last = name.split(".")
            module: nn.Module = self
            for part in path:
                if part not in dict(module.named_children()):
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(last, nn.Parameter(torch.empty(0)))
        by_rows = len(names) - 1 <= len(whole.weight)
        cut = whole.weight if by_rows else whole.weight.view(1, -1)
        pieces = *cut.tensor_split(len(names) - 1, dim=0 if by_rows else 1), whole.bias
        for one, piece in zip(self.parameters(), pieces, strict=True):
            one.data = piece.detach().clone()
            one.requires_grad_(piece.requires_grad)

    def forward(self, x: Tensor) -> Tensor:
        *weight, bias = self.parameters()
        whole = torch.cat([one.flatten() for one in weight]).view(len(bias), -1)
        return nn.functional.linear(x, whole, bias)
