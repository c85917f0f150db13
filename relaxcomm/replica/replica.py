"""What is trained: a model with its optimizers and its GradScaler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from relaxcomm.errors import UsageError
from relaxcomm.replica import sent_model
from relaxcomm.replica.buffers import AveragedBuffers
from relaxcomm.replica.client_optimizers import ClientOptimizers
from relaxcomm.replica.grad_scaler import GradientScale
from relaxcomm.replica.held_mean import HeldMean
from relaxcomm.replica.loaded_weights import LoadedWeights
from relaxcomm.replica.named_parameters import param_groups, parameters_of
from relaxcomm.replica.sharding import is_sharded_model, like, reshard
from relaxcomm.replica.trained_parameters import TrainedParameters
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
        self.trained = TrainedParameters(model, self.optimizers)
        """Looks whether model and optimizers hold the same parameters as at attach."""
        self.parameters = self.trained.trained
        """What is trained, last registered first, as backward meets it."""
        self.loaded = LoadedWeights(self.parameters, self.optimizers, self.reshard)
        """What the training loop has loaded since the last step."""
        self.hidden_gradients = HiddenGradients(self.parameters)
        """The training loop's own, in a step that is given up."""
        self.mean = HeldMean()
        """Whether the mean is in its place now."""
        self.buffers = AveragedBuffers(model)
        """What is averaged beside parameters, or may be later."""
        self._is_sharded = is_sharded_model(model)
        self.frozen = self.trained.frozen
        """What was not trained when the engine was attached, and is not exchanged."""
        self.scale = GradientScale(self.parameters, self.optimizers, scaler)
        """By which the gradients of this step are multiplied."""
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

    def model_state(self) -> dict[str, Any]:
        """The model's state, and what is trained where that leaves it out or has it by another name."""
        own = sent_model.state(self.model)
        return own | sent_model.values(item for item in self.parameters if item.name not in own)

    def load_model(self, saved: Mapping[str, Any]) -> None:
        """Load what `held` has made of `model_state`, with these names and shapes."""
        self.reshard()
        own = sent_model.state(self.model)
        beside = [item for item in self.parameters if item.name not in own]
        now = own | sent_model.values(beside)
        sent = {name: like(now[name], value) for name, value in saved.items()}
        sent_model.load(self.model, {name: sent[name] for name in own})
        sent_model.fill(beside, sent)
        if self._is_sharded:
            self.trained.follow_shards()

    def pack(self, items: Iterable[Item]) -> list[Bucket]:
        """Buckets of some tensors, apart from those of the rules; buffers share none with others."""
        return build_buckets(
            items, bucket_bytes=self.bucket_bytes, key=lambda item: item.name in self.buffers
        )

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
        if trained := [item for item in missing if item.grad is not None]:
            self._check_untrained(trained, slots)
        return found

    def _check_untrained(self, items: Iterable[Item], slots: Sequence[str]) -> None:
        """Refuse a parameter that was stepped, though its optimizer keeps nothing that is wanted of it.

        One whose optimizer keeps nothing of it at all may have a gradient that a GradScaler has skipped.
        """
        holders = {id(p): one for one in self.optimizers for p in parameters_of(one)}
        may_skip, wanted = self.scaler is not None and self.scaler.is_enabled(), " or ".join(map(repr, slots))
        for item in items:
            holder = holders.get(id(item.parameter))
            if holder is None:
                raise UsageError(
                    f"no optimizer holds {item.name}, which has a gradient, and {wanted} is exchanged of "
                    "each parameter that is trained; give it to an optimizer, or freeze it"
                )
            kept = holder.state.get(item.parameter)
            if kept or not may_skip:
                names = ", ".join(map(repr, kept)) if kept else "nothing"
                raise UsageError(
                    f"{type(holder).__name__} keeps no {wanted} of {item.name}, which is exchanged; it keeps "
                    f"{names}: exchange a state that it has, or use an optimizer that keeps this one"
                )

    def has_gradients(self, optimizer: Optimizer | None = None) -> bool:
        """Whether any `.grad` holds another number than zero; the host waits for those that are there.

        Args:
            optimizer: to whose parameters to look; by default to all.
        """
        own = {id(p) for p in parameters_of(optimizer)} if optimizer else None
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
