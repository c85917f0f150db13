"""What a primitive may ask of the parameter groups of an optimizer."""

from __future__ import annotations

from relaxcomm.errors import CompositionError


def refuse_momentum(asker: object, groups: list[dict[str, object]]) -> None:
    """Refuse an optimizer with momentum, where `asker` has it itself.

    Raises: CompositionError, naming the group.
    """
    for index, group in enumerate(groups):
        betas = group.get("betas")
        if group.get("momentum") or betas:
            raise CompositionError(
                f"{asker!r} has momentum itself, but the optimizer's group {index} has "
                f"{'betas=' + str(betas) if betas else 'momentum=' + str(group['momentum'])}; use "
                "torch.optim.SGD with momentum=0"
            )
