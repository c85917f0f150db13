"""Data injection: in each step some workers share a part of their batch with all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relaxcomm.fields.frozen import Share, frozen
from relaxcomm.fields.rounding import fewest


@frozen
class Injection:
    """SelSync's remedy for workers whose data differ.

    In each step ceil(alpha N) workers, drawn anew, share a fraction beta of their own `b' = b / (1 + alpha
    beta N)` samples with all others, so that the batch stays about b.

    Args:
        alpha: fraction of the workers that share, in (0, 1].
        beta: fraction of their own samples that they share, in (0, 1].

    Example:
        >>> from relaxcomm.data import Injection
        >>> injection = Injection(alpha=0.5, beta=0.5)
        >>> injection.local_samples(32, world_size=4)
        16
        >>> injection.received({0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6, 7]}, rank=0, at=0, local=2, seed=[0])
        [4]

    Reference: Tyagi and Swany, "Accelerating Distributed ML Training via Selective Synchronization",
        IEEE CLUSTER 2023.

    Differs from the paper: every rank can read the whole data set and knows by the seed which samples the
        others take, so indices are injected and no samples travel.
    """

    alpha: Share
    beta: Share

    def local_samples(self, batch_size: int, world_size: int) -> int:
        """b', the samples of a batch that are the worker's own, at least 1."""
        return max(1, round(batch_size / (1 + self.alpha * self.beta * world_size)))

    def received(
        self, shares: Mapping[int, Sequence[int]], rank: int, at: int, local: int, seed: list[int]
    ) -> list[int]:
        """What the sharing workers, the same for all ranks, add to this rank's batch.

        Args:
            shares: each rank's samples of the epoch, in order.
            rank: who receives.
            at: where the ranks' own batches begin in their shares.
            local: the length of these batches, in samples.
            seed: of the draw, different in each step.
        """
        count = fewest(self.alpha, len(shares))
        sharing = np.random.default_rng(seed).permutation(len(shares))[:count].tolist()
        taken = max(1, round(self.beta * local))
        return [
            index for other in sorted(sharing) if other != rank for index in shares[other][at : at + taken]
        ]
