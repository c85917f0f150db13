"""A bound on the size of what a worker sends."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Literal

from torch import Tensor

from relaxcomm.fields.frozen import Rate, frozen
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.compressors.weighted_sum import sum_dense
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.tensors.messages import Dense
from relaxcomm.tensors.norms import row_norms
from relaxcomm.tensors.precision import wide


@frozen
class clip_norm(Compressor):
    """Scale down what is longer than a bound: `C(x) = x min(1, max_norm / ||x||)`.

    So one worker moves an average by `max_norm / N` at most. Whoever receives it clips again, so that the
    bound does not rest on the sender alone: with `all_gather` each worker's message, with `all_reduce` their
    mean. For moves, such as deltas and gradients. What is cut is gone; with `error_feedback` around it, it
    comes in later messages, each within the bound. NaN and infinity stay what they are, so that nothing of
    the exchange is kept; `trimmed_mean` goes on without them.

    Args:
        max_norm: the largest norm, positive, in the units of what is exchanged.
        scope: "model" bounds the norm over all that the rule covers, apart for each dtype and where other
            rules cover a part of it, and gradients then wait for the end of backward; "bucket" that of each
            bucket on its own. An exchange that codes parts of a bucket, such as `scatter_gather` or `server`,
            bounds each part on its own.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_gather, clip_norm, deltas
        >>> rule = Rule(payload=deltas(), compressor=clip_norm(max_norm=1.0), exchange=all_gather())
        >>> trajectory(rule, [[0.5, 0.5, 0.5, 1e6]])
        tensor([[0.6250, 0.6250, 0.6250, 0.6250]])

    Reference: Sun et al., "Can You Really Backdoor Federated Learning?", arXiv 1911.07963.
    """

    max_norm: Rate
    scope: Literal["model", "bucket"] = "model"

    @cached_property
    def facts(self) -> CompressorFacts:
        return replace(identity.facts, scope=self.scope, linear=False, max_norm=self.max_norm)

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        message = Dense(self._clipped(tensor))
        sent = self._clipped(message.tensor) if keep_sent else None  # as it is received
        parts = yield message
        received = []
        for weight, part in parts:
            assert isinstance(part, Dense), f"expected a dense message, got {part!r}"
            received.append((weight, replace(part, tensor=self._clipped(part.tensor))))
        return sum_dense(received), sent

    def _clipped(self, tensor: Tensor) -> Tensor:
        norm = row_norms(tensor.unsqueeze(0).to(wide(tensor.dtype)))
        return tensor * (self.max_norm / norm).clamp(max=1.0).to(tensor.dtype)

    def values(self, numel: int, element_bytes: int) -> tuple[int, int]:
        return numel, element_bytes

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return numel * element_bytes
