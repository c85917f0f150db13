"""On what all ranks agree besides, which the messages of a rule do not tell."""

from __future__ import annotations

from dataclasses import dataclass

from relaxcomm.step.plan import Task


@dataclass(frozen=True)
class Agreed:
    """On how many numbers all agree in one exchange of a rule.

    Args:
        beside: its messages, as what is asked is known when they are sent.
        behind: them, as results are asked about.
    """

    beside: int = 0
    behind: int = 0


def agreed(task: Task, parameters: int) -> Agreed:
    """What all agree on in an exchange of a task's rule.

    Args:
        task: one of the rule's.
        parameters: of the model; which of them have a gradient is one number each.
    """
    rule = task.rule
    if rule.payload.facts.site == "backward":
        flags = parameters if task.moves_gradient and not task.carries_flags else 0
        return Agreed(beside=flags, behind=int(not rule.exchange.facts.same_result))
    if not task.results_differ:
        return Agreed()
    # Whether all is finite is known before a message goes, unless coding it may overflow.
    return Agreed(beside=1) if rule.compressor.facts.keeps_finite else Agreed(behind=1)
