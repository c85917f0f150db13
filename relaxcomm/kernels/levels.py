"""Which evenly spaced levels the entries of segments become, and from where they are counted."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.kernels.device_numbers import device_numbers

_MANY = 8  # codes


def moves_to_zero(num_codes: int, *, symmetric: bool) -> bool:
    """Whether levels on both sides of 0 are moved so that it is one: of two or four it would take too many.

    Example:
        >>> moves_to_zero(256, symmetric=False), moves_to_zero(4, symmetric=False)
        (True, False)
    """
    return num_codes >= _MANY and not symmetric


def levels_between(
    low: Tensor, high: Tensor, num_codes: int, *, symmetric: bool = False
) -> tuple[Tensor, Tensor]:
    """Distance of evenly spaced levels, and the lowest.

    They begin at the least entry, `(high - low) / (num_codes - 1)` apart. Those that `moves_to_zero`, where 0
    lies between, are `(high - low) / (num_codes - 2)` apart, and less than that lower.

    Args:
        low: least entries, `[count]`.
        high: largest entries, likewise.
        num_codes: levels.
        symmetric: whether they lie around 0, `(high - low) / (num_codes - 1)` apart.

    Example:
        >>> import torch
        >>> levels_between(torch.tensor([-0.5, 1.0]), torch.tensor([5.5, 15.0]), num_codes=8)
        (tensor([1., 2.]), tensor([-1.,  1.]))
    """
    # By a tensor: of a number a GPU would take the inverse first, and round twice.
    most = device_numbers((num_codes - 1,), low.dtype, low.device)
    if symmetric:
        high = torch.maximum(high, -low)
        return (high + high) / most, -high
    if not moves_to_zero(num_codes, symmetric=symmetric):
        return (high - low) / most, low
    around = (low < 0) & (high >= 0)
    step = (high - low) / (most - around.to(low.dtype))
    return step, torch.where(around, (low * inverse_steps(step)).floor_() * step, low)


def inverse_steps(steps: Tensor) -> Tensor:
    """`1 / step`, and 0 for a step that is no normal number, of which no inverse exists.

    Example:
        >>> import torch
        >>> inverse_steps(torch.tensor([4.0, 0.0, 1e-40]))
        tensor([0.2500, 0.0000, 0.0000])
    """
    normal = steps >= torch.finfo(steps.dtype).tiny
    return torch.where(normal, steps, 1.0).reciprocal_().mul_(normal)


def origins(steps: Tensor, inverses: Tensor, lows: Tensor, num_codes: int) -> tuple[Tensor, Tensor]:
    """What is taken off the entries of each segment, and the code of those of which nothing is left.

    The lowest level, and code 0. Where 0 is a level it is nothing, and the code of 0: so an entry that is 0
    lies on that level exactly, and no rounding hides how far off it small ones are.

    Args:
        steps: `[count]`.
        inverses: of the steps, likewise.
        lows: the lowest levels, likewise.
        num_codes: levels.

    Example:
        >>> import torch
        >>> steps, lows = torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 3.0])
        >>> origins(steps, inverse_steps(steps), lows, num_codes=4)
        (tensor([0., 3.]), tensor([2., 0.]))
    """
    zero = (0.5 - lows * inverses).floor_().clamp_(0, num_codes - 1)
    is_level = zero * steps == -lows
    return torch.where(is_level, 0.0, lows), torch.where(is_level, zero, 0.0)
