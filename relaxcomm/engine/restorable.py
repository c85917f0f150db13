"""What an engine saves of its run, and goes on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from relaxcomm.engine import engine_state, run_state
from relaxcomm.engine.readable import Readable
from relaxcomm.engine.run_state import Stateful
from relaxcomm.replica.held_mean import SAVES_MEAN
from relaxcomm.step.model_means import spoilt_in


class Restorable(Readable):
    """The part of an `Engine` that holds the state of a run."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an engine holds connections and hooks, and cannot be copied or pickled: keep it out of what is. "
            "Save engine.state_dict(); or the whole run, by engine.run_state_dict() or checkpoint.save()"
        )

    def state_dict(self) -> dict[str, Any]:
        """All state of this rank under its name, `{"rank_0": (state,)}`: clock, slots, results on their way.

        Save one for every rank, or all that belongs to a run by `relaxcomm.checkpoint.save`. The tuple is
        what torch.distributed.checkpoint keeps as a whole: only what was saved tells what there is to load.
        With a server (`ssp`) or pairs (`ad_psgd`) every rank must call it, outside `join()`, and waits for
        the others.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with attach(model, optimizer, "local_sgd") as engine:
            ...     model(torch.ones(1, 2)).sum().backward()
            ...     optimizer.step()
            ...     (state,) = engine.state_dict()["rank_0"]
            >>> state["step"]
            1
        """
        self._begin_save("state_dict()")
        return {run_state.name_of(self.world.rank): (engine_state.export(self._session),)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that this rank saved; load model and optimizer first. Every rank must call it.

        Raises: ConfigError, on every rank and before anything has changed, if one's belongs to another
            algorithm, model, rank, world size or moment, or is damaged.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> config = {"algorithm": {"name": "local_sgd", "steps": 4}}
            >>> with attach(model, optimizer, config) as engine:
            ...     for _ in range(3):
            ...         model(torch.ones(1, 2)).sum().backward()
            ...         optimizer.step()
            ...     state = engine.state_dict()
            >>> with attach(model, optimizer, config) as engine:
            ...     engine.load_state_dict(state)
            ...     model(torch.ones(1, 2)).sum().backward()
            ...     optimizer.step()  # the fourth since the last exchange
            ...     engine.statistics["synchronisations"]
            1
        """
        self._begin_load("load_state_dict()")
        mine = run_state.of_rank(self.world, state)
        engine_state.restore(self._session, engine_state.checked(self._session, mine))

    def run_state_dict(self, **others: Stateful) -> dict[str, Any]:
        """All that this rank needs to go on: model, optimizers, GradScaler, engine, random numbers.

        `relaxcomm.checkpoint.save` writes it. The tensors of the model and the optimizers are those that
        training changes: copy them before it goes on.

        Args:
            others: what else has a state, by a name of yours, such as `scheduler=scheduler`.

        Raises: UsageError in the middle of a step.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     list(engine.run_state_dict())[:2]
            ['model', 'optimizers']
        """
        self._begin_save("run_state_dict() or checkpoint.save()")
        return run_state.export(self._session, others)

    def load_run_state_dict(self, state: Mapping[str, Any], **others: Stateful) -> None:
        """Go on from what this rank has given by `run_state_dict`; every rank must call it.

        Raises: ConfigError, on every rank and before anything has changed, if one's belongs to another run.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> model = torch.nn.Linear(2, 1)
            >>> with attach(model, None, "bsp") as engine:
            ...     state = engine.run_state_dict()
            ...     drawn = torch.rand(())
            ...     engine.load_run_state_dict(state)
            ...     torch.equal(torch.rand(()), drawn)
            True
        """
        self._begin_load("load_run_state_dict() or checkpoint.load()")
        run_state.restore(self._session, state, others)

    def non_finite_parameters(self) -> list[str]:
        """The trained parameters that hold NaN or infinity here; on a GPU the host waits.

        `relaxcomm.checkpoint.save` asks, since `bsp` does not look at gradients in full precision.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> model = torch.nn.Linear(2, 1)
            >>> with attach(model, None, "bsp") as engine:
            ...     _ = model.bias.data.fill_(torch.nan)
            ...     found = engine.non_finite_parameters()
            ...     _ = model.bias.data.zero_()
            ...     found
            ['parameter bias']
        """
        self._check_open()
        replica = self._session.replica
        return spoilt_in(replica.pack(replica.parameters))

    def carry_run_state_dicts(
        self, states: Sequence[Mapping[str, Any]], **others: Stateful
    ) -> dict[str, Any]:
        """What this rank goes on from, made of what another number of ranks have given by `run_state_dict`.

        `load_run_state_dict` takes it. Replicas begin with the mean of all; what becomes of the rest is in
        docs/restarts.md.

        Args:
            states: of all those ranks, in rank order, on the CPU; they are not changed.
            others: what else has a state, as in `run_state_dict`.

        Raises: ConfigError for states of another run, or with a part that cannot be carried, naming it.

        Example:
            >>> import copy, torch
            >>> from relaxcomm import attach, simulate
            >>> def train(group, states=None):
            ...     model = torch.nn.Linear(1, 1, bias=False)
            ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            ...     with attach(model, optimizer, "local_sgd", process_group=group) as engine:
            ...         if states is None:
            ...             torch.nn.init.constant_(model.weight, group.rank())
            ...             return copy.deepcopy(engine.run_state_dict())
            ...         engine.load_run_state_dict(engine.carry_run_state_dicts(states))
            ...         return model.weight.item()
            >>> states = simulate(train, 4)
            >>> simulate(lambda group: train(group, states), 2)  # the mean of 0, 1, 2 and 3
            [1.5, 1.5]
        """
        self._check_open()
        return run_state.carried(self._session, states, others)

    def _begin_save(self, called: str) -> None:
        self._check_not_averaged(called, SAVES_MEAN)
        if self.algorithm.meets_to_save:
            self._check_not_joined(called)

    def _begin_load(self, called: str) -> None:
        """Before ranks wait for each other; what services are asked before is no part of what is loaded."""
        self._check_not_averaged(called)
        self._check_not_joined(called)
        self._session.step.meet()
