"""When the rules of an algorithm exchange, and after how many steps all that comes again."""

from __future__ import annotations

import math
from functools import cached_property

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.data import RoundPlan
from relaxcomm.network.transport import Membership
from relaxcomm.planner.scenario import Scenario
from relaxcomm.roles import Context
from relaxcomm.roles.returned import is_yes

LEAST_STEPS = 16
"""That are replayed, and over which a trigger's period is counted."""
UNEVEN_STEPS = 64
"""Likewise, where steps take some workers longer than others."""
MOST_STEPS = 20_000
_MOST_IN_CYCLE = 2_000  # unless a rule's own period is longer


class Timetable:
    """The steps in which rules exchange; votes are taken to say yes.

    Args:
        algorithm: whose rules.
        scenario: on what.
    """

    def __init__(self, algorithm: Algorithm, scenario: Scenario) -> None:
        self._algorithm, self._scenario = algorithm, scenario
        self._fired: dict[int, frozenset[int]] = {}

    def fired(self, step: int) -> frozenset[int]:
        """The rules that exchange in a step."""
        if step not in self._fired:  # asked once
            rules = enumerate(self._algorithm.rules)
            self._fired[step] = frozenset(
                index for index, rule in rules if rule.is_active(step) and self._fires(rule, step)
            )
        return self._fired[step]

    @property
    def settled_from(self) -> int:
        """The first step from which all that is replayed comes again and again."""
        delays = (rule.delay for rule in self._algorithm.rules if isinstance(rule.delay, int))
        late = max(0, max(delays, default=0) - 1)  # so many steps later the first exchange lands
        return self.last_change + min(self.period, MOST_STEPS) + late

    @property
    def last_change(self) -> int:
        """The last step in which a rule begins, or no longer is active."""
        return max(one for rule in self._algorithm.rules for one in rule.active if one is not None)

    @property
    def period(self) -> int:
        """The most steps from one exchange of a rule to its next."""
        return max(map(self._period_of, self._algorithm.rules))

    @cached_property
    def cycle(self) -> int:
        """Steps after which all rules come again together; many, where those are too many or not known."""
        together = math.lcm(*map(self._period_of, self._algorithm.rules))
        if together <= _MOST_IN_CYCLE and not any(map(self.is_irregular, self._algorithm.rules)):
            return together
        return self.period * max(1, _MOST_IN_CYCLE // self.period)

    def is_irregular(self, rule: Rule) -> bool:
        """Whether its trigger fires more or less often than its period says, such as by chance."""
        first, facts = self.settled_from, rule.trigger.facts
        if facts.known != "start" or facts.needs or not rule.is_active(first):
            return False  # counted by its period
        period = facts.period_steps
        times = math.ceil(LEAST_STEPS / period)
        steps = range(first, first + times * period)
        return sum(self._fires(rule, step) for step in steps) != times

    def _period_of(self, rule: Rule) -> int:
        """Steps from one exchange of a rule to its next."""
        if rule.trigger.facts.known == "event":
            plan = rule.trigger.round_plan() or RoundPlan(epochs=1, fraction=1.0, clients=None)
            return self._scenario.round_steps(plan)
        return rule.trigger.facts.period_steps

    def _fires(self, rule: Rule, step: int) -> bool:
        """Whether a rule's trigger says yes, as far as that is known before."""
        facts = rule.trigger.facts
        if facts.known == "event":
            return (step + 1) % self._period_of(rule) == 0
        if facts.needs:  # what controllers write is not known before
            return (step - rule.active[0] + 1) % facts.period_steps == 0
        context = Context(
            step,
            rule.active[0],
            Membership(0, self._scenario.workers),
            lambda bucket: 0.0,
            topology=self._scenario.topology,
            decided=True,
        )
        return is_yes(rule.trigger.fires(context), "fires", rule.trigger)
