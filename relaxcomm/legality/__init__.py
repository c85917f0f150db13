"""Which compositions can work, decided from declared facts and never from a list of names."""

from relaxcomm.legality.graphs import check_topology
from relaxcomm.legality.rules import check_rule
from relaxcomm.legality.together import check_chooser, check_controllers, check_rules, check_together

__all__ = [
    "check_chooser",
    "check_controllers",
    "check_rule",
    "check_rules",
    "check_together",
    "check_topology",
]
