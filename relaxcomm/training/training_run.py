"""A training run on one rank: steps, evaluations, checkpoints, and what is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

import relaxcomm
from relaxcomm.checkpoint.periodic import Checkpoints
from relaxcomm.config import Config
from relaxcomm.engine import Engine
from relaxcomm.engine.reporting.run_warnings import warn_of_short_run
from relaxcomm.engine.run_state import Stateful
from relaxcomm.errors import CheckpointError, RejoinedError
from relaxcomm.network import Transport
from relaxcomm.system.environment import address_to_join
from relaxcomm.system.telling import tell
from relaxcomm.tasks.task import Task
from relaxcomm.tasks.user_calls import checked_loss, checked_measure, named
from relaxcomm.training.changing_ranks import ChangingRanks
from relaxcomm.training.devices import move
from relaxcomm.training.progress_bar import Display, make_display
from relaxcomm.training.results import Point, RankRecord
from relaxcomm.training.run_progress import RunProgress
from relaxcomm.training.stopwatch import Stopwatch


class Run:
    """A training run on one rank.

    Args:
        config: the configuration.
        task: what is trained.
        device: where the task's model is.
        transport: to the other ranks; None for those of the environment.
        clock: of the training time.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        device: torch.device,
        transport: Transport | None = None,
        clock: Stopwatch | None = None,
    ) -> None:
        self.config, self.task, self.device = config, task, device
        self.clock = clock or Stopwatch(device)
        self.engine: Engine = relaxcomm.attach(task.model, task.optimizers, config, process_group=transport)
        self.loader = self.engine.loader(
            task.train_data, batch_size=config.data.batch_size or task.batch_size
        )
        self.progress = RunProgress(self.clock, config.seed, self.engine.world.size)
        self.progress.steps = self.loader.batches_until(task.epochs)
        others: dict[str, Stateful] = {"trainer": self.progress}
        for index, scheduler in enumerate(task.schedulers):
            others[f"scheduler_{index}" if index else "scheduler"] = scheduler
        self.ranks = ChangingRanks(self.engine, self.progress, others)
        if self.ranks.rank == 0 and self.engine.world.size > 1 and not self._by_round:
            warn_of_short_run(self.engine.algorithm, config.phases, self.progress.steps)
        self.checkpoints: Checkpoints | None = None
        if config.checkpoint is not None:
            self.checkpoints = Checkpoints(self.engine, config.checkpoint, others)
        self.display: Display = self._make_display()

    def run(self) -> list[RankRecord]:
        """Train to the end; the records of all ranks that are there then, in rank order."""
        with ExitStack() as stack:
            stack.callback(lambda: self.display.close())
            stack.enter_context(self.engine)
            if address_to_join() is not None:
                self._take_part()
            elif self.checkpoints is not None:
                self.checkpoints.resume()
                self._expect_rest()
            self.clock.start()
            self._train()
            self._finish_checkpoints()
            self.engine.finish()
            self.clock.stop()
            self._evaluate()  # the model that is left to the user
            records = self.ranks.gather(self._record(), "the end of the run")
            self._follow_ranks()
        return records

    @property
    def _by_round(self) -> bool:
        """Whether workers play clients, and so have rounds in common, but no steps."""
        return self.engine.algorithm.round_plan is not None

    def _record(self) -> RankRecord:
        return RankRecord(
            history=tuple(self.progress.history),
            seconds=self.clock.seconds,
            statistics=dict(self.engine.statistics),
            bytes_by_primitive={
                name: sent for name, (sent, _) in self.engine.snapshot().bytes_moved.items() if sent
            },
        )

    def _train(self) -> None:
        """Train to the end, epoch by epoch, or round by round."""
        by_round = self._by_round
        while self.loader.epoch < self.task.epochs:
            if self.ranks.generation.number:
                self._expect_rest()
            for batch in self.loader:
                self.task.model.train()
                loss = self._train_step(batch)
                self.progress.step = self.engine.step
                if not by_round:
                    self._follow_ranks()
                self.display.title = self._title
                self.display.step(self.progress.step, loss)
                if not by_round:
                    self._look_after()
            if by_round:
                self._follow_ranks()
                self._look_after()

    @property
    def _is_time_to_evaluate(self) -> bool:
        """After each round, or every so many steps, but not after the last, which `run` evaluates."""
        if self._by_round:
            return self.loader.epoch < self.task.epochs
        step, is_elastic = self.progress.step, self.config.membership.elastic
        # Among ranks that come and go nobody knows the last step, after which all evaluate anyway.
        return step % self.task.evaluate_every_steps == 0 and (is_elastic or step < self.progress.steps)

    def _finish_checkpoints(self) -> None:
        """Wait for the last one; the model is there without it, too."""
        if self.checkpoints is None:
            return
        try:
            self.checkpoints.finish()
        except CheckpointError as error:
            if self.ranks.rank == 0:
                tell(f"{error}; the result is whole")

    def _take_part(self) -> None:
        """Begin where the others are that have admitted this rank, which is after a step or a round."""
        torch.manual_seed(self.config.seed + self.ranks.worker)
        self.ranks.take_part()
        self._look_after()

    def _look_after(self) -> None:
        """After a step or a round: evaluate and save, if it is time."""
        try:
            if self._is_time_to_evaluate:
                with self._pause(), self.engine.averaged():
                    self._evaluate()
            if self.checkpoints is not None:
                if self._by_round:
                    self.checkpoints.round()
                else:
                    self.checkpoints.step()
        except RejoinedError as error:
            tell(str(error).partition(";")[0])
            self.clock.start()
            self._take_part()
        self._follow_ranks()  # some may have been lost meanwhile

    def _follow_ranks(self) -> None:
        """Take note of ranks that are lost or have joined."""
        if self.ranks.follow():
            self.display.close()
            self.display = self._make_display()

    def _expect_rest(self) -> None:
        """Show how many steps the run has: an epoch has fewer where more ranks share it."""
        rest = self.loader.batches_until(self.task.epochs)
        self.progress.steps = self.display.steps = self.progress.step + rest

    def _make_display(self) -> Display:
        """Rank 0 shows the run, whoever that is."""
        steps, statistics = self.progress.steps, self.engine.statistics
        return make_display(self._title, steps, self.task.metric, statistics, rank=self.ranks.rank)

    @property
    def _title(self) -> str:
        """The algorithm, and the one that a phase, or `auto`, has put in its place."""
        name, now = self.config.algorithm.name, self.engine.algorithm.name
        return name + (f", now {now}" if now != name else "") + (", rank 0" if self._by_round else "")

    def _train_step(self, batch: Any) -> torch.Tensor:
        task = self.task
        total = torch.zeros((), device=self.device)
        size, batch = self.config.data.micro_batch_size, move(batch, self.device)
        for part, share in [(batch, 1.0)] if size is None else self.engine.micro_batches(batch, size):
            self._train_part(part, share, total)
        for optimizer in task.optimizers:
            optimizer.step()
        for optimizer in task.optimizers:
            optimizer.zero_grad()
        for scheduler in task.schedulers:
            scheduler.step()
        return total

    def _train_part(self, part: Any, share: float, total: torch.Tensor) -> None:
        """Forward and backward of a part of a batch, whose loss is added to a total."""
        task = self.task
        with named("loss", task.loss):
            loss = share * checked_loss(task.loss(task.model, part), task.loss)
        total += loss.detach()
        self.engine.observe(loss=total)  # before backward, at whose end triggers may look at it
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it

    def _evaluate(self) -> None:
        """Every rank evaluates the same averaged model, so none needs to be told the measure."""
        self.task.model.eval()
        with torch.no_grad(), named("evaluate", self.task.evaluate):
            measure = checked_measure(self.task.evaluate(self.task.model), self.task.evaluate)
        self.engine.observe_evaluation(**{self.task.metric: measure})
        sent = int(self.engine.statistics["bytes_sent"])
        self.progress.history.append(Point(self.progress.step, self.clock.seconds, sent, measure))
        self.display.evaluated(self.progress.step, measure, self.clock.seconds)

    @contextmanager
    def _pause(self) -> Iterator[None]:
        """Keep an evaluation out of the training time."""
        self.clock.stop()
        yield
        # A rank that starts its clock first would count the others' evaluation.
        self.ranks.gather(None, "the end of an evaluation")
        self.clock.start()
