"""Stale synchronous parallel."""

from __future__ import annotations

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Compressor, Staleness
from relaxcomm.primitives import deltas, identity, server


def ssp(staleness: Staleness = 3, compressor: Compressor | None = None) -> Algorithm:
    """Train on parameters that may miss what others did in their last `staleness` steps.

    Every step each worker takes its own optimizer step, pushes what it has moved to a parameter server
    that is sharded over the workers, and goes on with the server's parameters as soon as these hold
    all that any worker did more than `staleness` steps before. So a slow worker holds up the others
    by at most that, and no worker waits for bytes that it may do without. 0 equals `bsp` for SGD,
    with or without momentum; infinity is asynchronous. Momentum and adaptive optimizers suffer more
    from staleness than plain SGD. `averaged()` and `close()` give the server's model, with every push in it;
    BatchNorm's statistics stay with their worker until then, and are averaged.

    Args:
        staleness: in steps, 0 or more, or infinity (`.inf` in YAML).
        compressor: of what is pushed; full precision unless given. Each shard is coded on its own.

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.ssp import ssp
        >>> trajectory(ssp(staleness=0), [[1.0, 3.0]] * 2)
        tensor([[2., 2.],
                [4., 4.]])
        >>> trajectory(ssp(staleness=2), [[1.0, 3.0]] * 2)
        tensor([[0.5000, 2.0000],
                [2.5000, 4.0000]])

    Reference: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
        Server", NIPS 2013.

    Differs from the paper: workers' moves are averaged, not added, and momentum stays with its worker.
    """
    rule = Rule(payload=deltas(), compressor=compressor or identity(), exchange=server(staleness=staleness))
    return Algorithm((rule,), name="ssp")
