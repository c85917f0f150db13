"""The engine that a training loop holds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, TypeVar

import torch.distributed as dist

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.engine import end_of_run, evaluation, switching
from relaxcomm.engine.batching import Batching
from relaxcomm.engine.restorable import Restorable
from relaxcomm.engine.session import Session
from relaxcomm.engine.telemetry import Telemetry
from relaxcomm.engine.with_blocks import with_block
from relaxcomm.errors import UsageError, worded

T = TypeVar("T")


class Engine(Batching, Restorable, Telemetry):
    """Runs an algorithm's rules inside an ordinary training loop; made by `relaxcomm.attach`.

    Optimizer state (momentum, Adam's moments) stays local, but see `switch`. Floating-point buffers
    are averaged whenever a rule averages parameters or deltas, and by `averaged()` and `close()`;
    integer buffers stay local, and those that are not persistent.

    Example:
        >>> import torch
        >>> from relaxcomm import attach
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with attach(model, optimizer, {"algorithm": {"name": "local_sgd", "steps": 4}}) as engine:
        ...     for _ in range(8):
        ...         optimizer.zero_grad()
        ...         model(torch.randn(4, 2)).square().mean().backward()
        ...         optimizer.step()
        >>> engine.statistics["steps"], engine.statistics["synchronisations"]
        (8, 2)
    """

    def __init__(self, session: Session, *, owns_default_group: bool) -> None:
        super().__init__(session)
        self._owns_default_group = owns_default_group
        self._finished = False

    @with_block
    def averaged(self) -> Iterator[None]:
        """Hold the mean model inside, or the server's (`ssp`), to evaluate or save it; every rank must enter.

        Parameters and floating-point buffers come back bit for bit, but for what is written into a buffer
        inside, such as a best loss, which stays. BatchNorm's statistics, as weights, always come back. What
        changes or saves the run is refused inside: an optimizer's step, `switch`, `close`, a state.

        Raises: NonFiniteError on every rank if those of one hold NaN or infinity.

        Example:
            >>> import torch
            >>> from relaxcomm import attach, simulate
            >>> def train(group):
            ...     model = torch.nn.Linear(1, 1, bias=False)
            ...     optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            ...     with attach(model, optimizer, "local_sgd", process_group=group) as engine:
            ...         model.weight.data.fill_(0.0)
            ...         model(torch.full((1, 1), 2.0 + 4.0 * group.rank())).sum().backward()
            ...         optimizer.step()
            ...         with engine.averaged():
            ...             mean = model.weight.item()
            ...         return model.weight.item(), mean
            >>> simulate(train, 2)
            [(-2.0, -4.0), (-6.0, -4.0)]
        """
        self._check_not_joined("averaged()")
        with evaluation.averaged(self._session):
            yield

    def switch(
        self,
        algorithm: str | Mapping[str, Any] | Algorithm,
        *,
        residuals: Literal["carry", "drop"] = "carry",
    ) -> None:
        """Go on with another algorithm from the next step on; every rank must call it between two steps.

        Everything on its way is waited for and applied, and replicas that differ are averaged, with the
        optimizers' moments if the new algorithm keeps replicas equal. Its clock begins at 0; the statistics
        go on.

        Args:
            algorithm: as YAML has it, or made in Python; for the same topology.
            residuals: "carry" what compressors have left to send over to the new rules of the same payload,
                parameter by parameter, or "drop" it; what cannot be carried is dropped with a warning.

        Raises: ConfigError, CompositionError, on every rank and before anything has changed, also if only one
            rank's algorithm is wrong or differs; UsageError inside a step or `join`, or where one of the two
            chooses the batches.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with attach(model, optimizer, "bsp") as engine:
            ...     for step in range(10):
            ...         if step == 2:
            ...             engine.switch({"name": "local_sgd", "steps": 4})
            ...         model(torch.ones(1, 2)).sum().backward()
            ...         optimizer.step()
            >>> engine.statistics["synchronisations"]
            4
        """
        self._check_not_averaged("switch()")
        self._session.loop.close_skipped_step()  # or ranks that skipped their last step would be one behind
        switching.check_between_steps(self._session.loop, "the algorithm is switched", "switch")
        phases = ", or name the switch in `phases`, which all ranks follow"
        self._check_not_joined("switch()", phases if self.algorithm.keeps_step else "")
        self._session.switch(algorithm, residuals)

    def together(self, event: Callable[[], T]) -> T:
        """Do something that all ranks take part in, between two steps; every rank must call it.

        With `membership: {elastic: true}` all meet at its end. Where ranks are lost before anybody has met
        the others, those that are left do it once more, from its beginning; else all have what it returns.

        Args:
            event: may be called several times, among other ranks each time: ask `world` in it.

        Returns: what it returns.

        Example:
            >>> import torch
            >>> from relaxcomm import attach, simulate
            >>> def slowest(group):
            ...     with attach(torch.nn.Linear(2, 1), None, "bsp", process_group=group) as engine:
            ...         seconds = 1.5 * (1 + group.rank())
            ...         return max(engine.together(lambda: engine.world.gather(seconds, "a comparison")))
            >>> simulate(slowest, 2)
            [3.0, 3.0]
        """
        self._check_not_joined("together() or checkpoint.save()")

        def after_pushes() -> T:
            step = self._session.step
            if step.bound.state.services and not self._finished:  # nobody serves after the end
                with self.world.statistics.evaluating():  # a part of no step
                    step.meet(evaluates=True)
            return event()

        return self._session.common_events.together(after_pushes)

    def close(self, *, average: bool | None = None) -> None:
        """Drain what is in flight, average the replicas, and restore model and optimizer.

        Late gradients are applied in order by `optimizer.step()`. Where a server holds the model (`ssp`), all
        end with the server's, which has what every rank has pushed.

        Args:
            average: whether to end with the mean model, or the server's; by default if the algorithm lets
                replicas differ or the model has buffers that are averaged.

        Raises: NonFiniteError on every rank if what is averaged, or comes late, holds NaN or infinity on one;
            models stay as they are, and the engine is closed all the same.

        Example:
            >>> import torch
            >>> from relaxcomm import attach, simulate
            >>> def train(group):
            ...     model = torch.nn.Linear(1, 1, bias=False)
            ...     optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            ...     engine = attach(model, optimizer, "local_sgd", process_group=group)
            ...     model.weight.data.fill_(float(group.rank()))
            ...     engine.close(average=True)
            ...     return model.weight.item()
            >>> simulate(train, 3)
            [1.0, 1.0, 1.0]
        """
        if self._closed or sys.is_finalizing():
            return
        self._check_not_averaged("close()")
        if not self._finished:
            self.finish(average=average)
        elif average is not None:
            raise UsageError("finish() has ended the run; say there whether it averages")
        self._closed = True
        self._release(f"closed at step {self.step}")

    def finish(self, *, average: bool | None = None) -> None:
        """Do all that `close` does, but let the ranks do more `together` until it is called.

        Every rank must call it.

        Args:
            average: as `close` has it.

        Raises: as `close`, and the engine is closed then.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> model = torch.nn.Linear(2, 1)
            >>> with attach(model, torch.optim.SGD(model.parameters()), "bsp") as engine:
            ...     engine.finish()
            ...     engine.together(lambda: engine.world.gather(engine.statistics["steps"], "the end"))
            [0]
        """
        self._check_not_averaged("finish()")
        if self.algorithm.keeps_step:
            self._check_not_joined("close() or finish()")
        if self._finished:
            raise UsageError("finish() was called before; it ends the run")
        self._finished = True
        try:
            end_of_run.finish(self._session, average=average)
        except BaseException as error:
            self._fail(error)
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.close()
        except UsageError as refused:
            error = refused
            raise
        finally:
            if error is not None and not (self._closed or sys.is_finalizing()):  # torch would abort then
                self._fail(error)

    def __repr__(self) -> str:
        world = self._session.world
        place = f"rank {world.rank} of {world.size}, step {self._session.bound.clock.step}"
        return f"Engine({self.algorithm!r}, {place})"

    def _fail(self, error: BaseException) -> None:
        self._closed = True
        self._session.detach()
        self._release(f"failed: {worded(error)}")

    def _release(self, status: str) -> None:
        self._session.release(status)
        if self._owns_default_group and not status.startswith("failed"):
            dist.destroy_process_group()
