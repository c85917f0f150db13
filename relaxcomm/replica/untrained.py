"""Parameters of which the optimizers keep nothing yet, told from those of which they never will."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch.amp import GradScaler
from torch.optim import Optimizer

from relaxcomm.errors import UsageError
from relaxcomm.tensors.items import Item


def check_untrained(
    items: Iterable[Item],
    slots: Sequence[str],
    optimizers: Iterable[Optimizer],
    scaler: GradScaler | None,
) -> None:
    """Raise UsageError for a parameter that was stepped, though its optimizer keeps nothing that is wanted.

    One whose optimizer keeps nothing of it at all may have a gradient that a GradScaler has skipped.

    Args:
        items: parameters of which none of `slots` is kept.
        slots: names in an optimizer's state.
        optimizers: of the parameters.
        scaler: the GradScaler, if one is used.
    """
    gradients = [item for item in items if item.grad is not None]
    if not gradients:
        return
    holders = {id(p): one for one in optimizers for group in one.param_groups for p in group["params"]}
    may_skip = scaler is not None and scaler.is_enabled()
    wanted = " or ".join(map(repr, slots))
    for item in gradients:
        holder = holders.get(id(item.parameter))
        if holder is None:
            raise UsageError(
                f"no optimizer holds {item.name}, which has a gradient, and {wanted} is exchanged of each "
                "parameter that is trained; give it to an optimizer, or freeze it"
            )
        kept = holder.state.get(item.parameter)
        if kept or not may_skip:
            names = ", ".join(map(repr, kept)) if kept else "nothing"
            raise UsageError(
                f"{type(holder).__name__} keeps no {wanted} of {item.name}, which is exchanged; it keeps "
                f"{names}: exchange a state that it has, or use an optimizer that keeps this one"
            )
