"""What is said of exchanged tensors that are not finite."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from relaxcomm.errors import CommunicationError, NonFiniteError, some_of
from relaxcomm.replica.replica import Replica
from relaxcomm.step.world import World
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.finiteness import is_finite, which_finite

NOT_FINITE = "not finite"
"""The label of what ranks ask each other about that."""
GRADIENT = "the gradient of"  # before names, where gradients are spoken of


def spoilt(bucket: Bucket, flat: Tensor, kind: str = "") -> list[str]:
    """What of a bucket holds NaN or infinity, "buffer 1.running_mean"; for one read if nothing does.

    Args:
        bucket: the bucket.
        flat: its contents, `[numel]` or more.
        kind: what is said before each name; by default whether it is a parameter or a buffer.
    """
    flat = flat[: bucket.numel]
    if is_finite(flat):
        return []
    found = zip(named(bucket, kind), which_finite(bucket.views(flat)), strict=True)
    return [name for name, good in found if not good]


def named(bucket: Bucket, kind: str = "") -> list[str]:
    """The tensors of a bucket as errors name them; `kind` is said before, see `spoilt`."""
    return [
        f"{kind or ('parameter' if isinstance(item.parameter, nn.Parameter) else 'buffer')} {item.name}"
        for item in bucket.items
    ]


def non_finite_error(
    world: World,
    put_in: Sequence[str],
    came: Sequence[str],
    step: int,
    *,
    so: str = "nothing of this exchange was kept",
    replica: Replica | None = None,
) -> NonFiniteError:
    """An error that says on which ranks NaN or infinity arose; all ranks make it at the same place.

    They ask each other only now, so that a step in which all is well has no message more.

    Args:
        world: the ranks.
        put_in: what of this rank's own was not finite when it was sent.
        came: what was not finite when it came.
        step: in which.
        so: what follows.
        replica: of which buffers were exchanged, too; None if none were.

    Raises: UsageError in its place for a buffer that stood as NaN, since a rank has changed its shape.
    """
    shapes = {} if replica is None else replica.buffers.shapes()
    try:
        told = world.gather_all((some_of(put_in), shapes), "an error about NaN or infinity")
    except CommunicationError as error:
        where = f"{some_of(put_in or came)} (on which ranks they arose could not be asked: {error})"
        return _error(f"step {step}: NaN or infinity in {where}; {so}")
    for rank, (_, theirs) in enumerate(told):
        if replica is not None:
            replica.buffers.check_shapes(theirs, rank)
    where = _by_rank([names for names, _ in told])
    came_as = some_of(came) or "a result"
    where = where or f"{came_as} though no rank put any in, so it overflowed on the way"
    return _error(f"step {step}: NaN or infinity in {where}; {so}", on_all_ranks=True)


def held_error(everyone: Sequence[Sequence[str]], step: int, so: str) -> NonFiniteError:
    """An error about what the ranks hold, of which each knows what the others have found.

    Args:
        everyone: what was not finite, of every rank.
        step: after which.
        so: what follows.
    """
    where = _by_rank([some_of(names) for names in everyone])
    return _error(f"step {step}: NaN or infinity in {where}; {so}", on_all_ranks=True)


def local_error(names: Sequence[str], rank: int, step: int, so: str) -> NonFiniteError:
    """An error about this rank's own tensors, which it makes alone."""
    return _error(f"step {step}: NaN or infinity in {some_of(names)} on rank {rank}; {so}")


def _error(text: str, *, on_all_ranks: bool = False) -> NonFiniteError:
    # Without a scaler that attach knows; one that it knows leaves such gradients out, and nothing is said.
    scaler = "; if a GradScaler is used, pass it: attach(..., scaler=scaler)" if "gradient" in text else ""
    return NonFiniteError(
        f"{text}. Lower the learning rate or clip gradients{scaler}", on_all_ranks=on_all_ranks
    )


def _by_rank(everyone: Sequence[str]) -> str:
    return "; ".join(f"{names} on rank {rank}" for rank, names in enumerate(everyone) if names)
