"""What an engine tells of its run."""

from __future__ import annotations

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config
from relaxcomm.engine.session import Session
from relaxcomm.errors import UsageError
from relaxcomm.network.generations import Generation
from relaxcomm.step.world import World


class Readable:
    """The part of an `Engine` that can be read at any time.

    Args:
        session: that runs.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._closed = False

    @property
    def algorithm(self) -> Algorithm:
        """What runs.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.algorithm.rules[0].exchange
            all_reduce()
        """
        return self._session.bound.algorithm

    @property
    def replicas_may_differ(self) -> bool:
        """Whether `averaged` is of use: the algorithm lets replicas differ, or there are buffers to average.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> for layer in torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2):
            ...     with attach(layer, None, "bsp") as engine:
            ...         engine.replicas_may_differ
            False
            True
        """
        return self._session.bound.replicas_may_differ

    @property
    def step(self) -> int:
        """Steps of the run so far, the same on all ranks; of one that has joined, too.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with attach(model, optimizer, "bsp") as engine:
            ...     while engine.step < 3:  # however often ranks are lost or join
            ...         model(torch.ones(1, 2)).sum().backward()
            ...         optimizer.step()
            ...     engine.step
            3
        """
        return self._session.world.statistics.steps

    @property
    def closed(self) -> bool:
        """Whether it follows the training loop no more: after `close`, or an error in its `with` block.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.closed
            False
            >>> engine.closed
            True
        """
        return self._closed

    @property
    def choice(self) -> str | None:
        """What an algorithm such as `auto` chose after the first steps, and why, in one line; else None.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.choice is None  # nothing was left to choose
            True
        """
        return self._session.schedule.choice

    @property
    def generation(self) -> Generation:
        """The workers that train now; it changes in an elastic run that loses workers, or gets more.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.generation.number, engine.generation.workers
            (0, (0,))
        """
        return self._session.generation

    @property
    def is_behind(self) -> bool:
        """Whether other workers have made steps that this one is yet to make, since some were lost.

        Where workers keep step it exchanges nothing until then. What all do `together` when `generation`
        has changed waits for that.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.is_behind  # nobody was lost
            False
        """
        return self._session.loop.given_up.is_behind

    @property
    def world(self) -> World:
        """The ranks of the run, for what is built on the engine.

        Example:
            >>> import torch
            >>> from relaxcomm import attach, simulate
            >>> def size(group):
            ...     with attach(torch.nn.Linear(2, 1), None, "bsp", process_group=group) as engine:
            ...         return engine.world.rank, engine.world.size
            >>> simulate(size, 2)
            [(0, 2), (1, 2)]
        """
        return self._session.world

    @property
    def settings(self) -> Config:
        """The configuration that it was attached with.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.settings.timeout_seconds
            300.0
        """
        return self._session.settings

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the engine is closed; attach again")

    def _check_not_joined(self, called: str, instead: str = "") -> None:
        """Raise UsageError if it is closed, or inside join(), where ranks without data would not follow."""
        self._check_open()
        self._session.step.inputs.check_left(called, instead)

    def _check_not_averaged(self, called: str, instead: str = "") -> None:
        """Raise UsageError if it is closed, or `averaged` holds the mean in place of the replica."""
        self._check_open()
        self._session.replica.mean.check_left(called, instead)
