"""The same compressors inside DistributedDataParallel, as a communication hook."""

# DDP compares the annotations of a hook with its own classes, so they must not become strings here.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch names it where it is built in
from torch.futures import Future

from relaxcomm.composition.algorithm import Rule
from relaxcomm.engine.finite import is_finite
from relaxcomm.engine.flights import Flight, Pipeline, Program
from relaxcomm.engine.moving import moved
from relaxcomm.engine.slots import Slots
from relaxcomm.engine.statistics import Statistics
from relaxcomm.errors import CompositionError
from relaxcomm.network import TorchTransport, Transport
from relaxcomm.primitives.exchanges.exchange_for import exchange_for
from relaxcomm.primitives.payloads.gradients import gradients
from relaxcomm.roles import Compressor, Context, Exchange
from relaxcomm.tensors.buckets import Bucket, Item

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
    compressor looks at the whole model, they go out at the end of backward. Residuals follow their
    parameters when DDP rebuilds its buckets; what has no entry for each parameter begins anew.

    Args:
        compressor: how gradients are coded.
        exchange: over what; the cheapest that takes the compressor's messages unless given.
        module: gives the parameters their names, for compressors that ask for them.
        scaler: the GradScaler, if one is used: what is kept must not follow its scale.
        process_group: that of the DistributedDataParallel; None for all ranks.
        backend: "auto" takes NCCL on CUDA and Gloo on the CPU.
        timeout_seconds: the longest wait for another rank.

    Returns: what `register_comm_hook(None, hook)` takes; one for each DistributedDataParallel.

    Raises: CompositionError for an exchange that cannot combine the messages, or that gives ranks
        different results.

    Example:
        >>> hook = ddp_hook(power_sgd(matrix_rank=2))
        >>> model.register_comm_hook(None, hook)

    Reference: Vogels et al., "PowerSGD", NeurIPS 2019, for what PyTorch's own hook of that name does.
    """
    exchange = exchange or exchange_for(compressor)
    if not (exchange.collective and exchange.same_result and exchange.uses_topology == "complete"):
        raise CompositionError(
            f"{exchange!r} gives ranks different results, so DistributedDataParallel's replicas would part; "
            "use all_reduce(), all_gather() or scatter_gather()"
        )
    rule = Rule(payload=gradients(), compressor=compressor, exchange=exchange)
    named = module.named_parameters() if module is not None else ()
    names: dict[Tensor, str] = {p: name for name, p in named}
    made: list[_Averager] = []

    def hook(state: object, bucket: GradBucket) -> Future[Tensor]:
        if not made:
            transport = TorchTransport(
                process_group,
                device=bucket.buffer().device,
                backend=backend,
                timeout_seconds=timeout_seconds,
                debug=False,
            )
            made.append(_Averager(rule, transport, names, scaler))
        return made[0](bucket)

    return hook


@dataclass
class _Unit:
    """What is coded at once: a bucket of DDP's, or all of them, with the state of its compressor."""

    bucket: Bucket
    slots: Slots


@dataclass
class _Waiting:
    """A bucket whose average DDP waits for."""

    parameters: list[Tensor]
    flat: Tensor
    future: Future[Tensor]


class _Averager:
    """Averages the buckets of one backward after the other."""

    def __init__(
        self, rule: Rule, transport: Transport, names: Mapping[Tensor, str], scaler: GradScaler | None
    ) -> None:
        self._rule, self._transport, self._names, self._scaler = rule, transport, names, scaler
        self._whole = rule.compressor.coding_scope == "model"
        self._pipeline = Pipeline(transport, Statistics(transport.counters))
        self._units: dict[int, _Unit] = {}
        self._waiting: list[_Waiting] = []
        self._flights: list[tuple[_Unit, Flight, list[_Waiting]]] = []
        self._before: list[_Unit] = []
        self._step = 0

    def __call__(self, bucket: GradBucket) -> Future[Tensor]:
        device = bucket.buffer().device
        future: Future[Tensor] = Future(devices=None if device.type == "cpu" else [device])
        self._waiting.append(_Waiting(bucket.parameters(), bucket.buffer(), future))
        if not self._whole:
            self._launch(len(self._flights), self._waiting[-1:])
        if bucket.is_last():
            self._finish()
        return future

    def _launch(self, index: int, content: Sequence[_Waiting]) -> None:
        unit = self._unit(index, [p for one in content for p in one.parameters])
        flat = content[0].flat if len(content) == 1 else torch.cat([one.flat for one in content])
        cx = self._context(unit)
        program = self._program(unit, cx, self._rule.payload.read(cx, unit.bucket, {}, flat))
        operations = self._rule.compressor.rounds * self._rule.exchange.operations
        flight = Flight(program, step=self._step, unit=index, operations=operations)
        self._pipeline.launch(flight)
        self._flights.append((unit, flight, list(content)))

    def _program(self, unit: _Unit, cx: Context, flat: Tensor) -> Program:
        running = self._rule.exchange.run(cx, flat, self._rule.compressor, unit.slots)
        try:
            operation = next(running)
            while True:
                received = yield "ddp", operation
                operation = running.send(received)
        except StopIteration as stop:
            result: Tensor = stop.value
            return result

    def _finish(self) -> None:
        """The last bucket is here: land everything, keep the state, answer DDP in its order."""
        if self._whole:
            for index, content in enumerate(_by_dtype(self._waiting)):
                self._launch(index, content)
        self._pipeline.finish()
        good = self._is_good([flight.result for _, flight, _ in self._flights])
        for unit, flight, content in self._flights:
            unit.slots.commit(good)
            self._rule.payload.write(self._context(unit), unit.bucket, {}, flight.result, None)
            sizes = [one.flat.numel() for one in content]
            for one, result in zip(content, torch.split(flight.result, sizes), strict=True):
                # DDP reads a result from the start of its memory, whatever part of it a view shows.
                if result.data_ptr() != one.flat.data_ptr():
                    one.flat.copy_(result)
        for one in self._waiting:
            one.future.set_result(one.flat)
        self._waiting, self._flights, self._before = [], [], []
        self._step += 1

    def _is_good(self, results: Sequence[Tensor]) -> bool | Tensor:
        """Whether state may be kept: the same on all ranks, since they have the same results."""
        if results[0].device.type == "cpu":
            return all(is_finite(result) for result in results)
        return torch.stack([result.isfinite().all() for result in results]).all()

    def _unit(self, index: int, parameters: list[Tensor]) -> _Unit:
        """The unit of these parameters; DDP makes other buckets once, and residuals move to them."""
        known = self._units.get(index)
        if known is not None:
            if known.bucket.holds(parameters):
                return known
            self._before, self._units = list(self._units.values()), {}
        items = [Item(self._names.get(p, f"parameter {at}"), p) for at, p in enumerate(parameters)]
        bucket = Bucket(index, items)
        coding = self._rule.exchange.coding_slots(bucket, self._rule.compressor, self._transport.membership)
        before = [(unit.bucket, unit.slots) for unit in self._before]
        slots = {name: moved(name, slot, bucket, before)[0] for name, slot in coding.items()}
        made = self._units[index] = _Unit(bucket, Slots(slots))
        return made

    def _context(self, unit: _Unit) -> Context:
        scale = None
        if self._scaler is not None and self._scaler.is_enabled():
            scale = self._scaler.scale(torch.ones((), device=unit.bucket.device))
        return Context(
            step=self._step,
            start=0,
            membership=self._transport.membership,
            learning_rate=_no_rate,
            gradient_scale=scale,
            round=self._step,
            layout=unit.bucket.layout,
            place=(unit.bucket.index,),
        )


def _no_rate(bucket: Bucket) -> float:
    raise CompositionError("a hook knows no learning rate, for which this compressor asks")


def _by_dtype(waiting: Sequence[_Waiting]) -> list[list[_Waiting]]:
    found: dict[torch.dtype, list[_Waiting]] = {}
    for one in waiting:
        found.setdefault(one.flat.dtype, []).append(one)
    return list(found.values())
