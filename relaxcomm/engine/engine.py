"""The engine that a training loop holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.engine import evaluation
from relaxcomm.engine.batching import Batching
from relaxcomm.engine.closable import Closable
from relaxcomm.engine.restorable import Restorable
from relaxcomm.engine.switching import switching
from relaxcomm.engine.telemetry import Telemetry
from relaxcomm.engine.with_blocks import with_block
from relaxcomm.errors import UsageError
from relaxcomm.fields.validation import shown

T = TypeVar("T")


class Engine(Batching, Restorable, Telemetry, Closable):
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
            chooses the batches; NonFiniteError for what cannot be averaged, and the old algorithm goes on.

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

        Raises: UsageError for what cannot be called, and what it raises.

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
        self._check_not_joined("together(), checkpoint.save() or load()")
        if not callable(event):
            raise UsageError(
                f"together() calls what it is given, got {shown(event)}; give a function, such as "
                "lambda: engine.world.gather(seconds, 'a comparison')"
            )

        def after_pushes() -> T:
            step = self._session.step
            if step.bound.state.services and not self._finished:  # nobody serves after the end
                with self.world.statistics.evaluating():  # a part of no step
                    step.meet(evaluates=True)
            return event()

        return self._session.common_events.together(after_pushes)

    def __repr__(self) -> str:
        world = self._session.world
        at = f"rank {world.rank} of {world.size}, step {self._session.bound.clock.step}"
        return f"Engine({self.algorithm!r}, {at})"
