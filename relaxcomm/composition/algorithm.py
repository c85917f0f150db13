"""Algorithm: a named tuple of rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from relaxcomm.composition import legality
from relaxcomm.composition.rule import Rule
from relaxcomm.data.clients import RoundPlan
from relaxcomm.errors import CompositionError
from relaxcomm.fields.allowed import ONE_LINE
from relaxcomm.fields.frozen import frozen
from relaxcomm.roles import Controller
from relaxcomm.roles.controller import BATCH_SIZE
from relaxcomm.roles.planner import Planner
from relaxcomm.system.warn import told_before
from relaxcomm.topology import Topology


@frozen
class Algorithm:
    """A named tuple of rules, checked when it is built.

    Args:
        rules: run in this order wherever several act in one step.
        name: what listings and metrics call it.
        controllers: watch rules and write named values, such as the batch size.
        planner: measures the first steps, and then chooses the algorithm to go on with.

    Raises: CompositionError for rules that cannot work together, or that disturb what a planner measures.

    Example:
        >>> from relaxcomm import Algorithm, Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, every, gradients, parameters
        >>> first = Rule(payload=gradients(), exchange=all_reduce(), active=(0, 2))
        >>> seldom = every(steps=2)
        >>> later = Rule(trigger=seldom, payload=parameters(), exchange=all_reduce(), active=(2, None))
        >>> trajectory(Algorithm((first, later), name="mine"), [[1.0, 3.0]] * 4)
        tensor([[2., 2.],
                [4., 4.],
                [5., 7.],
                [8., 8.]])
    """

    rules: tuple[Rule, ...]
    name: Annotated[str, Field(min_length=1, max_length=100, pattern=ONE_LINE)] = "custom"
    controllers: tuple[Controller, ...] = ()
    planner: Planner | None = None

    def __post_init__(self) -> None:
        legality.check_rules(self.rules)
        legality.check_controllers(self.controllers, self.rules)
        if self.planner is not None:
            legality.check_planner(self.planner, self.rules)

    def at(self, site: str) -> tuple[tuple[int, Rule], ...]:
        """The rules whose payload is read at `site`, with their index."""
        return tuple(
            (index, rule) for index, rule in enumerate(self.rules) if rule.payload.facts.site == site
        )

    def check_topology(self, topology: Topology) -> None:
        """Refuse a topology that cannot be used.

        Raises: CompositionError, saying which can.
        """
        legality.check_topology(self.rules, topology)

    def over(self, sizes: Mapping[str, int]) -> Algorithm:
        """This algorithm for a model, see `Rule.over`."""
        rules = tuple(rule.over(sizes) for rule in self.rules)
        if rules == self.rules:
            return self
        with told_before():
            return replace(self, rules=rules)

    def covering(self, name: str) -> tuple[int, ...]:
        """Indices of the rules that apply to the parameter `name`.

        Raises: CompositionError if there is none, since its replicas would drift apart in silence,
            or if two of them cannot work together.
        """
        found = tuple(index for index, rule in enumerate(self.rules) if rule.covers(name))
        if not any(self.rules[index].moves_parameters for index in found):
            raise CompositionError(
                f"no rule selects the parameter {name!r}, so its replicas would drift apart; widen a "
                f"rule's select: {'; '.join(', '.join(rule.select or ['all']) for rule in self.rules)}"
            )
        rules = [self.rules[index] for index in found]
        legality.check_together(rules, name)
        legality.check_bases(rules, name)
        return found

    @property
    def is_collective(self) -> bool:
        """Whether all workers take part in every exchange."""
        return all(rule.exchange.facts.collective for rule in self.rules)

    @property
    def meets_to_save(self) -> bool:
        """Whether a state is saved by all workers together, who wait for what each has asked and sent."""
        return not self.is_collective or any(rule.delay == "unbounded" for rule in self.rules)

    @property
    def keeps_step(self) -> bool:
        """Whether all workers take part in every exchange, in the same step."""
        return self.is_collective and all(rule.trigger.facts.known != "event" for rule in self.rules)

    @property
    def round_plan(self) -> RoundPlan | None:
        """What clients do between two exchanges, the same for all rules, or None if there are none."""
        return self.rules[0].trigger.round_plan()

    @property
    def chooses_batches(self) -> bool:
        """Whether the training data must come from the engine's loader, from the beginning to the end."""
        return self.round_plan is not None or BATCH_SIZE in self.needs

    @property
    def lets_replicas_differ(self) -> bool:
        """Whether workers may hold different parameters between two exchanges."""
        return not all(rule.keeps_replicas_equal for rule in self.rules if rule.moves_parameters)

    @property
    def makes_replicas_equal(self) -> bool:
        """Whether workers hold equal parameters after every step, or after some."""
        some = any(rule.keeps_replicas_equal or rule.makes_replicas_equal for rule in self.rules)
        return self.keeps_step and (some or not self.lets_replicas_differ)

    def kept_equal(self, names: Iterable[str], step: int) -> frozenset[str]:
        """Those of some parameters that rules keep equal in a step, if optimizers hold the same of them."""
        active = [rule for rule in self.rules if rule.moves_parameters and rule.is_active(step)]
        keep: dict[str, list[bool]] = {
            name: [rule.keeps_replicas_equal_while_active for rule in active if rule.covers(name)]
            for name in names
        }
        return frozenset(name for name, each in keep.items() if each and all(each))

    @property
    def needs(self) -> frozenset[str]:
        """Values that triggers and controllers look at."""
        triggers = [rule.trigger.facts.needs for rule in self.rules]
        return frozenset[str]().union(*triggers, *(controller.facts.needs for controller in self.controllers))

    def __repr__(self) -> str:
        planner = () if self.planner is None else (self.planner,)
        return f"Algorithm({self.name}: {'; '.join(map(repr, (*self.rules, *self.controllers, *planner)))})"
