"""What a compressor does wrong only beside another worker's messages, in matrices, or at odd sizes."""

import math
from dataclasses import replace

import pytest
import torch

from relaxcomm.plugin import (
    MAXIMUM,
    QUANTIZED,
    Compressor,
    Dense,
    Maximum,
    Quantized,
    Segments,
    SharedSupport,
    frozen,
    pack_codes,
    packed_bytes,
)
from relaxcomm.primitives import cast, identity, random_k
from tests.checks.test_liars import found, liar


@frozen
class shared_ternary(Compressor):
    """`s sign(x) b` with `P(b = 1) = |x| / s`, where s is the largest entry of all workers."""

    facts = replace(
        identity.facts,
        kinds=frozenset({MAXIMUM, QUANTIZED}),
        rounds=2,
        scope="bucket",
        linear=False,
        unbiased=True,
        follows_results=True,
        keeps_finite=False,
    )

    def scale(self, parts):
        return Maximum.of(parts)

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        numel, values = tensor.numel(), tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        scale = self.scale((yield Maximum(values.abs().amax().view(1) if numel else values.new_zeros(1))))
        draw = torch.rand(numel, generator=cx.generator(0, tensor.device))
        codes = (values.sign() * (draw < values.abs() / scale) + 1).nan_to_num().to(torch.uint8)
        steps = torch.where(scale.isfinite(), scale, math.nan)[: min(numel, 1)]
        segments = Segments(numel, None, (numel,) if numel else ())
        message = Quantized(pack_codes(codes, 3), steps, torch.empty(0), 3, segments)
        result, sent = torch.zeros_like(values), torch.zeros_like(values)
        message.add_to(sent, 1.0)
        for weight, one in (yield message):
            one.add_to(result, weight)
        return result, sent

    def message_bytes(self, numel, element_bytes):
        return packed_bytes(numel, 3) + max(4, element_bytes) * (1 + (numel > 0))


def test_a_scale_that_is_not_all_workers_is_found():
    """That of rank 0, where its own is smaller, cuts what others have."""
    assert found(shared_ternary(), "bias") is None
    said = found(liar(shared_ternary(), {}, scale=lambda self, parts: parts[0][1].tensor), "bias")
    assert "the mean of messages beside larger ones is off" in said


@frozen
class last_rows(Compressor):
    """The mean, and of each matrix the row of means, which is kept."""

    facts = replace(identity.facts, scope="bucket", slots={"rows": "equal"}, keeps_finite=False)

    def init(self, bucket):
        size = sum(shape[-1] for shape in bucket.layout.shapes if len(shape) > 1)
        return {"rows": torch.zeros(size, dtype=bucket.zeros().dtype)}

    def kept(self, tensor, mean):
        return mean

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        mean = sum(weight * part.tensor for weight, part in (yield Dense(tensor.clone())))
        kept, layout = self.kept(tensor, mean), cx.layout_of(tensor.numel())
        matrices = [
            kept[start : start + shape.numel()].view(-1, shape[-1]).mean(0)
            for _, shape, start in layout.spans()
            if len(shape) > 1
        ]
        state["rows"] = torch.cat([*matrices, kept[:0]]).to(state["rows"].dtype)
        return mean, tensor

    def message_bytes(self, numel, element_bytes):
        return numel * element_bytes


def test_slots_of_matrices_that_differ_are_found():
    assert found(last_rows(), "carried") is None
    said = found(liar(last_rows(), {}, kept=lambda self, tensor, mean: tensor), "carried")
    assert "all ranks hold the same 'rows', but they differ" in said


def test_a_result_that_is_another_one_on_each_worker_is_found():
    def encode_decode(self, cx, tensor, state, *, keep_sent):
        mean = sum(weight * part.tensor for weight, part in (yield Dense(tensor.clone())))
        rest = sum(weight * part.tensor for weight, part in (yield Dense(tensor - mean)))
        return (tensor + mean) / 2 + rest, tensor

    said = found(liar(identity(), {"rounds": 2}, encode_decode=encode_decode), "weights")
    assert "two workers make other results of the same messages" in said


@frozen
class quarter(Compressor):
    """A quarter of the entries, drawn by all alike."""

    facts = replace(random_k(density=0.25).facts, scope="bucket", slots={})

    def generator(self, cx):
        return torch.Generator().manual_seed(cx.step)

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        numel = tensor.numel()
        places = torch.randperm(numel, generator=self.generator(cx))[: self.count(numel)]
        values = tensor[places] if tensor.isfinite().all() else tensor[places].fill_(math.nan)
        zeros, sent = torch.zeros_like(tensor), values.clone()
        mean = sum(weight * part.tensor for weight, part in (yield SharedSupport(values)))
        return zeros.index_copy(0, places, mean), zeros.index_copy(0, places, sent)

    def count(self, numel):
        return max(round(numel / 4), min(numel, 1))

    def message_bytes(self, numel, element_bytes):
        return self.count(numel) * element_bytes


def test_places_that_each_rank_draws_for_itself_are_named():
    assert found(quarter(), "weights") is None
    own = liar(quarter(), {}, generator=lambda self, cx: cx.generator(0, torch.device("cpu")))
    said = found(own, "weights")
    assert said.endswith("let all ranks send the same entries, which cx.generator does not draw alike")


def test_bytes_that_are_rounded_the_other_way_are_found():
    """Of 7 and 600 entries a quarter is the same."""

    def message_bytes(self, numel, element_bytes):
        return math.ceil(numel / 4) * element_bytes

    assert found(quarter(), "messages") is None
    said = found(liar(quarter(), {}, message_bytes=message_bytes), "messages")
    assert "declares 16 bytes for 13 entries of torch.float32, made 12" in said


@pytest.mark.parametrize("size", [4, 32])
def test_blocks_that_lie_in_two_tensors_are_found(size):
    def encode_decode(self, cx, tensor, state, *, keep_sent):
        rows = torch.nn.functional.pad(tensor, (0, -tensor.numel() % size)).view(-1, size)
        means = rows.mean(1, keepdim=True).expand_as(rows).flatten()[: tensor.numel()]
        sent = means.clone()
        return sum(weight * part.tensor for weight, part in (yield Dense(means))), sent

    said = found(liar(identity(), {"scope": "tensor"}, encode_decode=encode_decode), "scope")
    assert "declares to look at one tensor, but another one changes what comes out" in said


def test_what_shortens_float64_is_told_how_to_compute():
    def encode_decode(self, cx, tensor, state, *, keep_sent):
        mean = sum(weight * part.tensor for weight, part in (yield Dense(tensor.half())))
        return mean.float(), tensor.half().float()

    said = found(liar(cast(dtype="float16"), {}, encode_decode=encode_decode), "hard inputs")
    assert "and not torch.float64: compute in torch.promote_types(tensor.dtype, torch.float32)" in said
