"""What a primitive may ask of the parameter groups of an optimizer."""

from __future__ import annotations

from torch.optim import SGD

from relaxcomm.errors import CompositionError


def refuse_all_but_plain_sgd(asker: object, groups: list[dict[str, object]]) -> None:
    """Refuse momentum, which `asker` has itself, and torch's optimizers that scale gradients; own ones pass.

    Raises: CompositionError, naming the group.
    """
    for index, group in enumerate(groups):
        betas, kind = group.get("betas"), group.get("optimizer")
        if betas:
            found = f"betas={betas}"
        elif group.get("momentum"):
            found = f"momentum={group['momentum']}"
        elif isinstance(kind, type) and kind.__module__.startswith("torch.optim") and kind is not SGD:
            found = f"the steps of {kind.__name__}"
        else:
            continue
        raise CompositionError(
            f"{asker!r} has momentum itself, but the optimizer's group {index} has {found}; use "
            "torch.optim.SGD with momentum=0"
        )
