"""The gradient rules of one bucket in one step, and the late ones among them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from torch import Tensor

from relaxcomm.step.bound import Bound
from relaxcomm.step.device_flags import PutIn
from relaxcomm.step.finite import GRADIENT, named, spoilt
from relaxcomm.step.flight import Pipeline, Program
from relaxcomm.step.plan import Task
from relaxcomm.step.transfer import Transfer
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.finiteness import is_finite


class GradientTransfers:
    """Exchanges the gradients of a bucket: rules that act in the same step take turns on one buffer.

    Args:
        bucket: of parameters.
        bound: the algorithm on a model.
        names_ranks: whether NaN is an error that names the rank where it arose.
        debug: whether it is looked for where nothing is kept that it would spoil, too.
    """

    def __init__(
        self,
        bucket: Bucket,
        bound: Bound,
        *,
        names_ranks: bool,
        debug: bool,
    ) -> None:
        self.bucket = bucket
        self.buffer = bound.plan.gradients_of(bucket)
        self._tasks = bound.plan.of_bucket(bucket, "backward")
        self._state, self._clock = bound.state, bound.clock
        self._world, self._controllers = bound.world, bound.controllers
        self._names_ranks, self._on_gpu = names_ranks, bucket.device.type == "cuda"
        self._guarded = {
            task.index
            for task in self._tasks
            if debug or task.rule.delay or task.parts or not self._shows_nan(task)
        }
        """Rules whose results must be finite, or they would spoil what is kept, or one rank alone."""
        self._apart = {task.index for task in self._tasks if not task.rule.exchange.facts.same_result}
        self._delays = any(task.rule.delay for task in self._tasks)
        self._factor = 1 / self._world.size
        self._divides = {task.index for task in self._tasks if self._can_divide(task)}
        self.late: deque[Transfer] = deque()
        self.firing: list[Task] = []
        self.begin(())

    def begin(self, fired: Collection[int]) -> bool:
        """A backward begins, in which so many rules fire; whether the bucket has anything to do."""
        self._ran: list[Transfer] = []
        self._moved = False
        self._observed: list[Tensor] = []
        self._is_finite: bool | None = None
        self.not_finite: list[str] = []
        self.put_in: PutIn | None = None
        self.buffer.expect_all()
        self.fire(fired)
        return bool(self.firing or self._due())

    def fire(self, fired: Collection[int]) -> bool:
        """These rules exchange now; whether any covers the bucket."""
        self.firing = [task for task in self._tasks if task.index in fired]
        return bool(self.firing)

    @property
    def accumulates(self) -> bool:
        """Whether a second backward in one step would add up to the same as one."""
        return all(
            task.rule.compressor.facts.linear
            and task.rule.exchange.facts.returns != "robust mean"
            and not task.rule.delay
            and task.moves_gradient
            for task in self.firing
        )

    @property
    def ran_apart(self) -> bool:
        """Whether ranks have got different results in this step."""
        return bool(self._apart) and any(transfer.task.index in self._apart for transfer in self._ran)

    @property
    def flags_travel(self) -> bool:
        """Whether used-flags reach all ranks inside the messages."""
        return all(task.carries_flags for task in self.firing if task.moves_gradient)

    @property
    def _is_divided(self) -> bool:
        """Whether the mean is taken where gradients are copied."""
        return len(self.firing) == 1 and self.firing[0].index in self._divides

    def take(self, place: int) -> None:
        """A large gradient has come, by its place in the bucket."""
        if self.firing:
            self.buffer.take(place, self._factor if self._is_divided else None)

    def launch(self, pipeline: Pipeline) -> bool:
        """Collect the gradients and issue the first operation; whether there is anything to exchange."""
        self.buffer.unused = []
        due = self._due()
        if not self.firing and not due:
            return False
        divided = self._is_divided
        self.buffer.collect(self._factor if divided else None)
        # The exchange overwrites it, so later nobody could say on which rank it arose.
        found = []
        if self._names_ranks and self._guarded and any(task.index in self._guarded for task in self.firing):
            if self._on_gpu:
                self.put_in = PutIn.of(named(self.bucket, GRADIENT), self.buffer.views)
            else:
                found = spoilt(self.bucket, self.buffer.main, GRADIENT)
        transfers = [self._transfer(task) for task in self.firing]
        late = [transfer for transfer in transfers if transfer.task.rule.delay] if self._delays else []
        self._moved = self._moved or bool(due) or any(task.moves_gradient for task in self.firing)
        if late:
            self._launch_late(late[0], found)
        elif transfers:
            self.not_finite += found
            transfers[0].launch(self._program(transfers, divided=divided), self._clock.step, pipeline)
        self._ran += transfers
        return True

    def land_late(self) -> None:
        """Put the gradient that is due in the place of this step's own, or zeros while none is due."""
        if not self._delays:
            return
        due = self._due()
        replaces = any(task.rule.delay for task in self.firing)
        if replaces:
            self.buffer.main.zero_()
        if replaces or due:
            self._is_finite = None
        for late in due:
            self.late.remove(late)
            self._ran.append(late)
            self.not_finite += late.not_finite
            self.buffer.main.add_(self._late_value(late))

    def drain(self) -> bool:
        """Put the oldest late gradient into `.grad`; whether there was one."""
        if not self.late:
            return False
        late = self.late.popleft()
        self.not_finite = list(late.not_finite)
        self.buffer.main.copy_(self._late_value(late))
        self.buffer.expose(range(len(self.bucket.items)))
        return True

    @property
    def is_guarded(self) -> bool:
        """Whether something was exchanged in this step that must be finite."""
        return bool(self._guarded) and any(transfer.task.index in self._guarded for transfer in self._ran)

    def guarded_results(self) -> list[Tensor]:
        """What the exchanges of this step have brought, where it must be finite."""
        if not self.is_guarded:
            return []
        return [*self._observed, *([self.buffer.main] if self._moved else [])]

    def bad_results(self) -> list[Tensor]:
        """Those of `guarded_results` that are not finite; the host waits for them."""
        results = self.guarded_results()
        if self._is_finite:
            results = [result for result in results if result is not self.buffer.main]
        return [result for result in results if not is_finite(result)]

    def commit(self, good: bool | Tensor) -> None:
        """Keep or drop what the primitives wrote to their slots."""
        for transfer in self._ran:
            transfer.commit(good)

    def export(self) -> list[list[object]]:
        """Late gradients as a checkpoint keeps them; waits for them."""
        return [
            [late.due, late.task.index, self.bucket.index, late.flight.land().clone()] for late in self.late
        ]

    def restore(self, due: float, index: int, result: Tensor) -> None:
        """Put a late gradient back that a checkpoint has saved."""
        task = next(task for task in self._tasks if task.index == index)
        slots, context = self._state.of(task), self._clock.context
        self.late.append(Transfer.landed(task, slots, context, self._world, due=due, result=result))

    def _transfer(self, task: Task) -> Transfer:
        slots, clock, round = self._state.of(task), self._clock, self._state.next_round(task)
        return Transfer(task, slots, clock.context, self._world, step=clock.step, round=round)

    def _due(self) -> list[Transfer]:
        return [late for late in self.late if late.due <= self._clock.step] if self.late else []

    def _can_divide(self, task: Task) -> bool:
        """Whether the mean may be taken where the gradient is copied: nothing else looks at it before."""
        alone = not task.rule.delay and task.moves_gradient and not self._controllers.watches(task.index)
        return task.rule.exchange.facts.takes_divided and alone and self._shows_nan(task)

    def _shows_nan(self, task: Task) -> bool:
        """Whether what is not finite comes to all ranks as it is, and spoils nothing that is kept."""
        lossless = task.rule.compressor.contraction(self.bucket.numel) == 0.0
        return lossless and not self._state.of(task).has_slots

    def _program(self, transfers: Sequence[Transfer], *, divided: bool) -> Program:
        buffer, numel = self.buffer, self.bucket.numel
        for transfer in transfers:
            task = transfer.task
            message = buffer.whole if task.carries_flags else buffer.main
            if not task.moves_gradient:  # what lies in `.grad` stays there
                message = message.clone()
            transfer.read(message[:numel])
            watched = self._controllers.watches(task.index)
            local = message[:numel].clone() if watched else None
            result = yield from transfer.exchange(message, divided=divided)
            if watched:
                cx = self._clock.context(task.rule)
                self._controllers.observe(task.index, cx, self.bucket.index, local, result[:numel])
            if task.moves_gradient:
                buffer.take_flags(result)
                transfer.apply(transfer.finalize(result[:numel]), into=buffer.main)
            else:
                self._observed.append(result)
        if self._moved and self.is_guarded and not self._on_gpu:
            self._is_finite = is_finite(buffer.main)  # now, while other buckets are on their way
        return buffer.main

    def _launch_late(self, transfer: Transfer, found: Sequence[str]) -> None:
        message = self.buffer.whole if transfer.task.carries_flags else self.buffer.main
        transfer.read(self.buffer.main)
        transfer.launch(transfer.exchange(message.clone()), self._clock.step, not_finite=found)
        self.late.append(transfer)

    def _late_value(self, late: Transfer) -> Tensor:
        numel = self.bucket.numel
        result = late.flight.land()
        value = late.apply(late.finalize(result[:numel]))
        if result.numel() > numel and self.buffer.unused:
            self.buffer.expose_used(result[numel:].tolist())
        return value
