"""How a training loop ends its engine, and what an error leaves of it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

import torch.distributed as dist

from relaxcomm.engine import end_of_run
from relaxcomm.engine.readable import Readable
from relaxcomm.engine.session import Session
from relaxcomm.errors import UsageError, worded


class Closable(Readable):
    """The part of an `Engine` that ends it.

    Args:
        session: that runs.
        owns_default_group: whether it has made torch's default process group, which ends with it.
    """

    def __init__(self, session: Session, *, owns_default_group: bool) -> None:
        super().__init__(session)
        self._owns_default_group = owns_default_group
        self._finished = False

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
            with self._session.replica.loaded.ending():
                end_of_run.finish(self._session, average=average)
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """End it since an error has ended the training loop: peers learn of it at once, and wait for nobody.

        A `with` block does so where it raises; this is for loops that have none. Model and optimizer are then
        as before attach; once the engine is closed nothing happens.

        Args:
            error: that the peers are told.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> engine = attach(torch.nn.Linear(2, 1), None, "bsp")
            >>> try:
            ...     raise OSError("the disk is full")
            ... except OSError as error:
            ...     engine.fail(error)
            >>> engine.closed
            True
        """
        if self._closed or sys.is_finalizing():  # torch would abort then
            return
        self._closed = True
        self._session.detach()
        self._release(f"failed: {worded(error)}")

    def __enter__(self) -> Self:
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
            if error is not None:
                self.fail(error)

    def _release(self, status: str) -> None:
        self._session.release(status)
        if self._owns_default_group and not status.startswith("failed"):
            dist.destroy_process_group()
