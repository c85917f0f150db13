"""Which compositions can work, decided from declared facts and never from a list of names."""

from relaxcomm.composition.legality.between_rules import check_rules, check_together
from relaxcomm.composition.legality.later_rules import check_bases
from relaxcomm.composition.legality.topologies import check_topology
from relaxcomm.composition.legality.watching import check_controllers, check_planner
from relaxcomm.composition.legality.within_rule import check_rule

__all__ = [
    "check_bases",
    "check_controllers",
    "check_planner",
    "check_rule",
    "check_rules",
    "check_together",
    "check_topology",
]
