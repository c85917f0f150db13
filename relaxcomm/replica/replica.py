"""What is trained: a model with its optimizers and its GradScaler."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from relaxcomm.errors import UsageError
from relaxcomm.kernels.device_numbers import device_numbers
from relaxcomm.replica.buffers import in_shape, is_statistic, with_means
from relaxcomm.replica.client_optimizers import ClientOptimizers
from relaxcomm.replica.grad_scaler import is_scaled
from relaxcomm.replica.held_mean import HeldMean
from relaxcomm.replica.loaded_weights import LoadedWeights
from relaxcomm.replica.named_parameters import named_buffers, param_groups
from relaxcomm.replica.sharding import as_held, is_sharded_model, reshard
from relaxcomm.replica.trained_parameters import TrainedParameters
from relaxcomm.replica.untrained import check_untrained
from relaxcomm.replica.user_gradients import HiddenGradients
from relaxcomm.tensors.bucket_building import build_buckets
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item, local


class Replica:
    """This rank's copy of what all ranks train.

    Args:
        model: whose parameters and buffers are exchanged.
        optimizers: of its parameters; none if whoever trains updates by hand.
        scaler: the GradScaler, if one is used.
        bucket_bytes: capacity of a bucket.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scaler: GradScaler | None,
        bucket_bytes: int,
    ) -> None:
        self.model, self.optimizers, self.scaler = model, tuple(optimizers), scaler
        self.bucket_bytes = bucket_bytes
        self._trained = TrainedParameters(model, self.optimizers)
        self.parameters = self._trained.trained
        """What is trained, last registered first, as backward meets it."""
        self.loaded = LoadedWeights(self.parameters, self.optimizers, self.reshard)
        """What the training loop has loaded since the last step."""
        self.hidden_gradients = HiddenGradients(self.parameters)
        """The training loop's own, in a step that is given up."""
        self.mean = HeldMean()
        """Whether the mean is in its place now."""
        means = with_means(model)
        self._buffers = {name: buffer.shape for name, buffer in means.items()}
        self._averaged = frozenset(name for name, buffer in means.items() if is_statistic(buffer))
        self._is_sharded = is_sharded_model(model)
        self.frozen = self._trained.frozen
        """What was not trained when the engine was attached, and is not exchanged."""
        self.gradient_scale: Tensor | None = None
        """By which the gradients of this step are multiplied; None without a GradScaler."""
        self.clients = ClientOptimizers(self.parameters, self.optimizers)
        """What the optimizers keep of each client that this rank plays."""

    @property
    def names(self) -> dict[Tensor, str]:
        """What each parameter of the model is called, trained or not."""
        return {item.parameter: item.name for item in (*self.parameters, *self.frozen)}

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.parameters[0].tensor.device

    def reshard(self) -> None:
        """Let go of whole parameters that a forward has left, before what the model holds is written."""
        if self._is_sharded:
            reshard(self.model)

    def load_model(self, saved: Mapping[str, Any]) -> None:
        """Load what `held` has made of the model's `state_dict`."""
        self.reshard()
        self.model.load_state_dict(as_held(self.model, saved))
        if self._is_sharded:
            self._trained.follow_shards()

    def check_parameters(self) -> None:
        """Raise UsageError for a parameter that came after attach, or was replaced or taken away."""
        self._trained.check()

    def check_frozen(self) -> None:
        """Raise UsageError if a parameter was unfrozen after attach."""
        self._trained.check_frozen()

    @property
    def has_means(self) -> bool:
        """Whether there are buffers that are averaged, or may be later: the same on all ranks."""
        return bool(self._buffers)

    def buffers(self) -> list[Item]:
        """Averaged buffers (BatchNorm's statistics), looked up afresh since `.to()` replaces them.

        One of another shape than at attach, which other ranks may have kept, stands there as NaN of that
        shape: so all ranks see that it cannot be averaged.
        """
        found = self._named(self._averaged)
        return [Item(item.name, in_shape(item.tensor, self._buffers[item.name])) for item in found]

    def maybe_buffers(self) -> list[Item]:
        """Buffers that were no statistics at attach, such as masks and empty ones, but may be by now."""
        return self._named(self._buffers.keys() - self._averaged)

    def buffer_shapes(self) -> dict[str, list[int]]:
        """Shapes of the averaged buffers, as they are now."""
        return {item.name: list(item.tensor.shape) for item in self._named(self._averaged)}

    def check_shapes(self, shapes: Mapping[str, list[int]], rank: int) -> None:
        """Raise UsageError for a buffer that has another shape than at attach.

        Args:
            shapes: of a rank's buffers that are to be averaged.
            rank: whose.
        """
        for name, now in shapes.items():
            was = self._buffers[name]
            if now != list(was) and was.numel():  # an observer's range has no entry before its first batch
                raise UsageError(
                    f"the buffer {name} is averaged, and had the shape {list(was)} when the engine was "
                    f"attached; now it has {now} on rank {rank}, which others may not have. Keep a cache by "
                    "register_buffer(…, persistent=False), which stays on its rank; for another size on all "
                    "ranks close the engine before, and attach anew after"
                )

    def pack(self, items: Iterable[Item]) -> list[Bucket]:
        """Buckets of some tensors, apart from those of the rules; buffers share none with others."""
        return build_buckets(
            items, bucket_bytes=self.bucket_bytes, key=lambda item: item.name in self._buffers
        )

    def holds_buffers(self, bucket: Bucket) -> bool:
        """Whether a bucket that `pack` has made is one of buffers."""
        return bucket.items[0].name in self._buffers

    def learning_rate(self, bucket: Bucket) -> float | Tensor:
        """The optimizers' current rate for a bucket: a number, or `[numel]` if its tensors have several."""
        groups = param_groups(self.optimizers)
        known = {id(p): float(group["lr"]) for group in groups for p in group["params"]}
        rates = [known.get(id(item.parameter), 0.0) for item in bucket.items]
        if len(set(rates)) == 1:
            return rates[0]
        sizes = torch.tensor([item.tensor.numel() for item in bucket.items])
        return torch.repeat_interleave(torch.tensor(rates, dtype=torch.float64), sizes)

    def optimizer_state(self, bucket: Bucket, slots: Sequence[str]) -> list[Tensor | None]:
        """What the optimizers keep of each tensor of a bucket, of a sharded one this rank's part.

        Args:
            bucket: whose tensors.
            slots: names in an optimizer's state; of each tensor the first that is there is taken.

        Returns: one a tensor; None where it is not trained yet.

        Raises: UsageError for one that is trained, and of which no optimizer keeps any of them.
        """
        states = [optimizer.state for optimizer in self.optimizers]
        found: list[Tensor | None] = []
        for item in bucket.items:
            kept: Mapping[str, Any] = next((s[item.parameter] for s in states if item.parameter in s), {})
            values = (kept[slot] for slot in slots if isinstance(kept.get(slot), Tensor))
            found.append(next((local(value).detach() for value in values), None))
        missing = [item for item, value in zip(bucket.items, found, strict=True) if value is None]
        check_untrained(missing, slots, self.optimizers, self.scaler)
        return found

    def has_gradients(self, optimizer: Optimizer | None = None) -> bool:
        """Whether any `.grad` holds another number than zero; the host waits for those that are there.

        Args:
            optimizer: to whose parameters to look; by default to all.
        """
        own = {id(p) for group in optimizer.param_groups for p in group["params"]} if optimizer else None
        mine = [item.grad for item in self.parameters if own is None or id(item.parameter) in own]
        return any(grad is not None and bool(grad.any()) for grad in mine)

    def clear_gradients(self) -> None:
        """Make `.grad` None everywhere."""
        for item in self.parameters:
            item.parameter.grad = None

    def spoil_gradients(self) -> None:
        """Make every `.grad` NaN, so that the GradScaler, which demands to see some, skips the step."""
        for item in self.parameters:
            if item.parameter.grad is None:
                item.parameter.grad = torch.empty_like(item.parameter)
            item.parameter.grad.fill_(torch.nan)  # where it lies: it may be a tensor of the training loop's

    def remember_scale(self) -> None:
        """Keep the scale of the gradients that are there now."""
        if self.scaler is not None and self.scaler.is_enabled():
            scale = self.scaler.scale(torch.ones((), dtype=torch.float32, device=self.device))
            assert isinstance(scale, Tensor)
            self.gradient_scale = scale

    def forget_scale(self) -> None:
        """No GradScaler unscales what comes from now on."""
        self.gradient_scale = None

    def scale(self) -> float:
        """The GradScaler's scale as a number, or 1; on a GPU the host waits for it."""
        return 1.0 if self.gradient_scale is None else self.gradient_scale.item()

    def scale_left(self, bucket: Bucket) -> Tensor | None:
        """By what a bucket's gradients are still multiplied just before the optimizers' step.

        A GradScaler unscales them before it steps an optimizer, but for a fused one, which does so itself.

        Returns: a scalar tensor, `[numel]` if the tensors' optimizers differ in this, None for nothing.
        """
        if self.scaler is None or self.gradient_scale is None:
            return None
        scaled = [one for one in self.optimizers if is_scaled(self.scaler, one)]
        held = {id(p) for group in param_groups(scaled) for p in group["params"]}
        left = tuple(id(item.parameter) in held for item in bucket.items)
        if not any(left):
            return None
        if all(left):
            return self.gradient_scale
        is_left = device_numbers(left, torch.bool, bucket.device)
        scales = torch.where(is_left, self.gradient_scale, 1.0)
        numels = tuple(item.tensor.numel() for item in bucket.items)
        sizes = device_numbers(numels, torch.int64, bucket.device)
        return torch.repeat_interleave(scales, sizes, output_size=bucket.numel)

    def _named(self, names: Collection[str]) -> list[Item]:
        """In the order at attach, the same on all ranks: what is registered anew is last in the model."""
        held = dict(named_buffers(self.model)) if names else {}
        return [Item(name, held[name]) for name in self._buffers if name in names and name in held]
