"""Rule: when, what, how, over what, how late, and what then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from relaxcomm.composition import fragments, legality
from relaxcomm.composition.rule_parts import RuleParts
from relaxcomm.errors import CompositionError
from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.exchanges.exchange_for import exchange_for
from relaxcomm.primitives.outers.average import average
from relaxcomm.primitives.payloads.optimizer_state import optimizer_state
from relaxcomm.system.warn import told_before


@frozen
class Rule(RuleParts):
    """When, what, how, over what, how late, and what then.

    Args:
        payload: what is exchanged.
        exchange: over what and with whom.
        trigger: when; every step unless given.
        compressor: how it is encoded; full precision unless given.
        delay: how many optimizer steps late the result is applied, or "unbounded": in the first step by
            which it has arrived, and until then nothing more is sent.
        outer: how the result moves the model; plain averaging unless given.
        select: a parameter name, or several, exact or as glob patterns such as `"encoder.*"`, or `"k/n"`: the
            k-th of n fragments of about equal size, cut in the model's order; None for all.
        active: first step in which the rule is active, and the first in which it no longer is (or None).

    Raises: ConfigError for an argument of the wrong type or range; CompositionError for primitives
        that cannot work together.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, deltas, every, nesterov
        >>> outer = nesterov(lr=0.7, momentum=0.9)
        >>> rule = Rule(trigger=every(steps=2), payload=deltas(), exchange=all_reduce(), outer=outer)
        >>> trajectory(rule, [[1.0, 3.0]] * 2)
        tensor([[1.0000, 3.0000],
                [5.3200, 5.3200]])
    """

    def __post_init__(self) -> None:
        legality.check_rule(self)

    def over(self, sizes: Mapping[str, int]) -> Rule:
        """This rule for a model: fragments are replaced by the names that lie in them.

        Args:
            sizes: of all parameters, in the model's order.

        Raises: CompositionError if there are fewer parameters than fragments.
        """
        if self.select is None or not any(fragments.is_fragment(one) for one in self.select):
            return self
        select = fragments.resolve(self.select, sizes)
        with told_before():
            return replace(self, select=select)

    def in_fragments(self, count: int) -> tuple[Rule, ...]:
        """This rule for one fragment of the model after the other, so that less is sent at once.

        The k-th of n begins `(k - 1) / n` of the steps between two exchanges later than the first.

        Args:
            count: of fragments of about equal size, cut in the model's order; 1 for this rule as it is.

        Returns: the rules.

        Raises: CompositionError for no fragments or more than there are steps from one exchange to the next,
            for one that begins when the rule is no longer active, and for a rule that selects parameters
            itself.

        Example:
            >>> from relaxcomm import Rule
            >>> from relaxcomm.primitives import all_reduce, every, parameters
            >>> rule = Rule(trigger=every(steps=8), payload=parameters(), exchange=all_reduce())
            >>> rule.in_fragments(2)[1]
            Rule(every(steps=8), parameters(), all_reduce(), select=['2/2'], active=(4, None))
        """
        period, (start, stop) = self.trigger.facts.period_steps, self.active
        if not isinstance(count, int) or count < 1:
            raise CompositionError(f"a model in {count!r} fragments; give a whole number, 1 or more")
        if count > period:
            raise CompositionError(
                f"{self!r} in {count} fragments: each needs a step of its own, and {self.trigger!r} may fire "
                f"every {period}; use at most {period} fragments"
            )
        if count == 1:
            return (self,)
        if self.select is not None:
            raise CompositionError(
                f"{self!r} in {count} fragments: fragments are of the whole model; leave its select out"
            )
        rules = []
        for index in range(count):
            begin, name = start + index * period // count, f"{index + 1}/{count}"
            if stop is not None and begin >= stop:
                raise CompositionError(
                    f"{self!r} in {count} fragments: {name} begins in step {begin}, when the rule is no "
                    f"longer active; use fewer fragments, or a range that ends later than step {begin}"
                )
            with told_before():
                rules.append(replace(self, select=(name,), active=(begin, stop)))
        return tuple(rules)

    def with_moments(self, slots: Iterable[str]) -> tuple[Rule, ...]:
        """This rule, and one for each slot that averages what the optimizers keep there in the same steps.

        Args:
            slots: names in the optimizer's state, such as "exp_avg" or "momentum_buffer".

        Returns: the rules; moments go in full precision, and are there at once.

        Example:
            >>> from relaxcomm import Rule
            >>> from relaxcomm.primitives import all_reduce, every, parameters
            >>> rule = Rule(trigger=every(steps=8), payload=parameters(), exchange=all_reduce(), delay=2)
            >>> rule.with_moments(["exp_avg"])[1]
            Rule(every(steps=8), optimizer_state(slots=('exp_avg',)), all_reduce())
        """
        plain = self.exchange if self.compressor == identity() else exchange_for(identity())
        return self, *(
            Rule(
                trigger=self.trigger,
                payload=optimizer_state(slots=(slot,)),
                exchange=plain,
                select=self.select,
                active=self.active,
            )
            for slot in slots
        )

    def __repr__(self) -> str:
        defaults = {"compressor": identity(), "outer": average()}
        shown = [repr(value) for role, value in self.primitives.items() if defaults.get(role) != value]
        shown += [f"delay={self.delay!r}"] if self.delay else []
        shown += [f"select={list(self.select)}"] if self.select is not None else []
        shown += [f"active={self.active}"] if self.active != (0, None) else []
        return f"Rule({', '.join(shown)})"
