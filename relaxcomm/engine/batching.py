"""How an engine feeds a training loop: data loaders, micro-batches, gradients that are accumulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from torch.utils.data import Dataset

from relaxcomm.config.unread_keys import batch_size_of
from relaxcomm.data import (
    ClientLoader,
    Injection,
    Partition,
    ShareLoader,
    check_map_style,
    make_loader,
    num_samples,
    split_batch,
)
from relaxcomm.data.clients import CLIENT, ROUND, ROUND_GIVEN_UP, ROUND_LEFT
from relaxcomm.engine.membership import shadow
from relaxcomm.engine.readable import Readable
from relaxcomm.engine.with_blocks import with_block
from relaxcomm.errors import UsageError
from relaxcomm.network.transport import ALONE


class Batching(Readable):
    """The part of an `Engine` that has to do with data."""

    def loader(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = None,
        *,
        partition: Partition | None = None,
        injection: Injection | None = None,
        **options: Any,
    ) -> ShareLoader | ClientLoader:
        """A DataLoader over this rank's share of `dataset`, see `relaxcomm.data.make_loader`.

        Each iteration reads the next epoch, shuffled anew, whether the loader is made once or for each
        epoch: the engine counts the epochs of a data set, and keeps the place in `state_dict()`. Make the
        data set once: one that is made anew counts on only where nothing holds the one before. The engine
        counts samples, follows the batch size that the algorithm chooses, and, for algorithms with clients,
        plays them: one iteration is one round, which must be read to its end; `close` gives up one that was
        left.

        Args:
            dataset: map-style, with a length.
            batch_size: samples a worker and step, at first; None for the configured one.
            partition: None for the configured one.
            injection: None for the configured one.
            options: of `make_loader`.

        Raises: ConfigError for data or options that cannot be honoured; UsageError for a second data set
            where the algorithm changes the batch size or plays clients.

        Example:
            >>> import torch
            >>> from relaxcomm import attach, simulate
            >>> def read(group):
            ...     model = torch.nn.Linear(1, 1)
            ...     with attach(model, None, "bsp", process_group=group) as engine:
            ...         return [batch.tolist() for batch in engine.loader(range(8), batch_size=2)]
            >>> first, second = simulate(read, 2)
            >>> sorted(sum(first + second, []))
            [0, 1, 2, 3, 4, 5, 6, 7]
        """
        check_map_style(dataset)
        batch_size = batch_size_of(self._session.settings, batch_size)
        data = self._session.loaders.find(dataset, batch_size, options)
        plan, world = self.algorithm.round_plan, self._session.world
        loader = make_loader(
            dataset,
            batch_size=batch_size,
            # Who hold a replica together play a client together; else each is a reader as any other.
            membership=world.process if plan is None else world.membership,
            shard=ALONE if plan is None else world.shard,
            seed=self._session.settings.seed,
            partition=partition or self._session.settings.data.partition,
            injection=injection or self._session.settings.data.injection,
            plan=plan,
            progress=data.progress,
            **options,
        )
        return self._session.loaders.attach(loader, data, batch_size)

    def micro_batches(self, batch: Any, size: int) -> Iterator[tuple[Any, float]]:
        """Parts of a batch, each with its share of the samples; only the last one's backward is exchanged.

        Args:
            batch: tensors whose first dimension is the samples, and lists of as many, in tuples, lists and
                mappings; what else it holds is in each part.
            size: samples of a part, at most.

        Raises: UsageError for a batch that cannot be cut.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> model = torch.nn.Linear(2, 1)
            >>> with attach(model, None, "bsp") as engine:
            ...     for x, share in engine.micro_batches(torch.ones(5, 2), 2):
            ...         (share * model(x).mean()).backward()
            ...         x.shape[0], share
            (2, 0.4)
            (2, 0.4)
            (1, 0.2)
            >>> model.weight.grad
            tensor([[1., 1.]])
        """
        parts, total = list(split_batch(batch, size)), num_samples(batch)
        for index, (part, share) in enumerate(parts):
            self._session.bound.controllers.accumulation.expect(round(share * total))
            with nullcontext() if index == len(parts) - 1 else self.no_sync():
                yield part, share

    @with_block
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients: a backward in here exchanges nothing.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with attach(model, optimizer, "bsp") as engine:
            ...     with engine.no_sync():
            ...         model(torch.ones(1, 2)).sum().backward()
            ...     model(torch.ones(1, 2)).sum().backward()
            ...     optimizer.step()
            >>> model.weight.grad, engine.statistics["synchronisations"]
            (tensor([[2., 2.]]), 1)
        """
        with self._session.loop.paused(), self._session.loop.turns.uncounted():
            yield

    @with_block
    def join(self) -> Iterator[None]:
        """Let ranks run out of data at different times; every rank must enter.

        A rank that leaves the block shadows the others: it contributes zero gradients (the mean is
        still over all ranks, as in DDP) or its own parameters. In the end all have the model of a
        rank that trained longest. Phases and planners go on inside; what all ranks do
        together, such as `averaged` and `switch`, belongs outside.

        Raises: UsageError, on every rank, for a phase to come, or a planner's choice, that goes on from or
            with an algorithm whose ranks have no common step, such as `ssp`.

        Example:
            >>> import torch
            >>> from relaxcomm import attach, simulate
            >>> def train(group):
            ...     model = torch.nn.Linear(1, 1)
            ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            ...     with attach(model, optimizer, "bsp", process_group=group) as engine:
            ...         with engine.join():
            ...             for _ in range(3 + group.rank()):  # rank 1 has a batch more
            ...                 model(torch.ones(1, 1)).sum().backward()
            ...                 optimizer.step()
            ...         return engine.statistics["steps"]
            >>> simulate(train, 2)
            [4, 4]
        """
        self._check_open()
        self._session.loop.close_skipped_step()  # whose exchange the others have begun
        self._session.schedule.check_join()
        self._session.step.inputs.are_uneven = True
        try:
            yield
            if self.algorithm.keeps_step:  # else nobody waits in a step for a rank that has finished
                self._session.loop.close_skipped_step()
                shadow.follow(self._session.loop, self._session.schedule)
        finally:
            self._session.step.inputs.are_uneven = False

    def mark(self, event: str, **facts: float) -> None:
        """Tell the engine of something that no hook sees, and for which a plug-in's primitives wait.

        Args:
            event: its name, on every rank; "client" and "round" are told by `engine.loader`.
            facts: numbers.

        Raises: UsageError for what the loader tells.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> config = {"algorithm": {"name": "fedavg", "epochs": 1}}
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with attach(model, optimizer, config) as engine:
            ...     for x in engine.loader(torch.ones(6, 2), batch_size=2):  # tells of clients and rounds
            ...         model(x).sum().backward()
            ...         optimizer.step()
            ...     engine.mark("holiday")  # of which no rule has heard
            >>> engine.statistics["synchronisations"]
            1
        """
        self._check_open()
        if self.algorithm.round_plan is not None and event in (CLIENT, ROUND, ROUND_LEFT, ROUND_GIVEN_UP):
            raise UsageError(
                f"engine.loader tells of clients and rounds itself, so {event!r} would count twice; leave "
                "the mark out, and take the batches from engine.loader"
            )
        self._session.loop.close_skipped_step()
        self._session.event(event, facts)
