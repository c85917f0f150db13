"""The same compressors inside DistributedDataParallel, as a communication hook."""

# DDP compares the annotations of a hook with its own classes, so they must not become strings here.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch names it where it is built in
from torch.futures import Future

from relaxcomm.composition.rule import Rule
from relaxcomm.errors import CompositionError
from relaxcomm.integrations.hook_units import HookUnits
from relaxcomm.integrations.hooked_model import HookedModel
from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.network import TorchTransport, Transport
from relaxcomm.primitives.exchanges.exchange_for import exchange_for
from relaxcomm.primitives.payloads.gradients import gradients
from relaxcomm.roles import Compressor, Context, Exchange
from relaxcomm.step.flight import Pipeline
from relaxcomm.step.plan import Task
from relaxcomm.step.transfer import Transfer
from relaxcomm.step.world import World
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.finiteness import all_finite, is_finite

Hook = Callable[[object, GradBucket], Future[Tensor]]


def ddp_hook(
    compressor: Compressor,
    *,
    exchange: Exchange | None = None,
    module: nn.Module | None = None,
    scaler: GradScaler | None = None,
    process_group: Any = None,
    backend: str = "auto",
    timeout_seconds: float = 300.0,
) -> Hook:
    """A communication hook for DistributedDataParallel that averages compressed gradients.

    Messages go out bucket by bucket while backward goes on, over process groups of the hook's own and from
    one place alone, so schemes of several rounds work on Gloo with any number of buckets. Where a
    compressor looks at the whole model, and in the first backward, they go out at its end. Residuals follow
    their parameters when DDP rebuilds its buckets; what has no entry for each parameter begins anew.
    A checkpoint has none of them: a run that goes on from one begins with none.

    Args:
        compressor: how gradients are coded.
        exchange: over what; the cheapest that takes the compressor's messages unless given.
        module: gives the parameters their names, for compressors that ask for them, and its buffers, which
            over NCCL must be on the GPU, too.
        scaler: the GradScaler, if one is used: what is kept must not follow its scale.
        process_group: that of the DistributedDataParallel; None for all ranks.
        backend: "auto" takes NCCL on CUDA and Gloo on the CPU.
        timeout_seconds: the longest wait for another rank.

    Returns: what `register_comm_hook(None, hook)` takes; one for each DistributedDataParallel.

    Raises: CompositionError for an exchange that cannot combine the messages, or that gives ranks
        different results. The first backward raises UsageError, on every rank, where NCCL cannot connect
        one: its model is split over devices or was not on the current one when the hook was made, or
        ranks share a GPU. A backward of another DistributedDataParallel raises UsageError.

    Example:
        >>> import torch
        >>> from relaxcomm import ddp_hook
        >>> from relaxcomm.primitives import error_feedback, power_sgd
        >>> from torch.nn.parallel import DistributedDataParallel
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> model = DistributedDataParallel(torch.nn.Linear(8, 8))
        >>> hook = ddp_hook(error_feedback(compressor=power_sgd(matrix_rank=2)))
        >>> model.register_comm_hook(None, hook)
        >>> model(torch.randn(8, 8)).square().sum().backward()
        >>> torch.linalg.matrix_rank(model.module.weight.grad)
        tensor(2)
        >>> torch.distributed.destroy_process_group()

    Reference: Vogels et al., "PowerSGD", NeurIPS 2019, for what PyTorch's own hook of that name does.
    """
    exchange = exchange or exchange_for(compressor)
    if not (
        exchange.facts.collective and exchange.facts.same_result and exchange.facts.topology == "complete"
    ):
        raise CompositionError(
            f"{exchange!r} gives ranks different results, so DistributedDataParallel's replicas would part; "
            "use all_reduce(), all_gather() or scatter_gather()"
        )
    rule = Rule(payload=gradients(), compressor=compressor, exchange=exchange)
    model = HookedModel(module)
    made: list[_Averager] = []

    def hook(state: object, bucket: GradBucket) -> Future[Tensor]:
        if not made:
            transport = TorchTransport.of(
                process_group,
                device=bucket.buffer().device,
                backend=backend,
                timeout_seconds=timeout_seconds,
                debug=False,
            )
            made.append(_Averager(rule, transport, model, scaler))
        return made[0](bucket)

    return hook


@dataclass
class _Waiting:
    """A bucket whose average DDP waits for."""

    parameters: list[Tensor]
    flat: Tensor
    future: Future[Tensor]


class _Averager:
    """Averages the buckets of one backward after the other."""

    def __init__(
        self, rule: Rule, transport: Transport, model: HookedModel, scaler: GradScaler | None
    ) -> None:
        self._model, self._scaler = model, scaler
        self._whole = rule.compressor.facts.scope == "model"
        self._is_checked = False
        self._world = World(transport, Statistics(transport.counters))
        self._pipeline = Pipeline()
        self._units = HookUnits(rule, model, self._world.membership)
        self._waiting: list[_Waiting] = []
        self._sent: list[tuple[Transfer, list[_Waiting]]] = []
        self._step = 0

    def __call__(self, bucket: GradBucket) -> Future[Tensor]:
        device = bucket.buffer().device
        future: Future[Tensor] = Future(devices=None if device.type == "cpu" else [device])
        self._waiting.append(_Waiting(bucket.parameters(), bucket.buffer(), future))
        if self._is_checked and not self._whole:
            self._launch(len(self._sent), self._waiting[-1:])
        if bucket.is_last():
            self._finish()
        return future

    def _launch(self, index: int, content: Sequence[_Waiting]) -> None:
        unit = self._units.of(index, [p for one in content for p in one.parameters])
        flat = content[0].flat if len(content) == 1 else torch.cat([one.flat for one in content])
        transfer = Transfer(
            unit.task, unit.slots, self._context, self._world, step=self._step, round=self._step
        )
        transfer.launch(transfer.exchange(transfer.read(flat)), self._step, self._pipeline)
        self._sent.append((transfer, list(content)))

    def _finish(self) -> None:
        """The last bucket is here: land everything, keep the state, answer DDP in its order."""
        if not self._is_checked:
            parameters = [p for one in self._waiting for p in one.parameters]
            self._model.check_devices(parameters, self._world.transport)
        if self._whole or not self._is_checked:
            together = _by_dtype(self._waiting) if self._whole else [[one] for one in self._waiting]
            for index, content in enumerate(together):
                self._launch(index, content)
        self._is_checked = True
        self._pipeline.finish()
        good = _is_good([transfer.result for transfer, _ in self._sent])
        for transfer, content in self._sent:
            result = transfer.apply(transfer.finalize(transfer.result))
            transfer.commit(good)
            sizes = [one.flat.numel() for one in content]
            for one, part in zip(content, torch.split(result, sizes), strict=True):
                # DDP reads a result from the start of its memory, whatever part of it a view shows.
                if part.data_ptr() != one.flat.data_ptr():
                    one.flat.copy_(part)
        for one in self._waiting:
            one.future.set_result(one.flat)
        self._units.end_backward()
        self._waiting, self._sent = [], []
        self._step += 1

    def _context(self, rule: Rule, task: Task | None = None, round: int = 0, samples: int = 1) -> Context:
        """What primitives may know in this backward."""
        scale = None
        if self._scaler is not None and self._scaler.is_enabled():
            scale = self._scaler.scale(torch.ones((), device=self._waiting[0].flat.device))
        return Context(
            step=self._step,
            start=0,
            membership=self._world.membership,
            learning_rate=_no_rate,
            gradient_scale=scale,
            round=round,
            samples=samples,
            layout=None if task is None else task.bucket.layout,
            bucket_part=() if task is None else (task.bucket.index,),
        )


def _is_good(results: Sequence[Tensor]) -> bool | Tensor:
    """Whether state may be kept: the same on all ranks, since they have the same results."""
    if results[0].device.type == "cpu":
        return all(is_finite(result) for result in results)
    return all_finite(results)


def _no_rate(bucket: Bucket) -> float:
    raise CompositionError("a hook knows no learning rate, for which this compressor asks")


def _by_dtype(waiting: Sequence[_Waiting]) -> list[list[_Waiting]]:
    found: dict[torch.dtype, list[_Waiting]] = {}
    for one in waiting:
        found.setdefault(one.flat.dtype, []).append(one)
    return list(found.values())
