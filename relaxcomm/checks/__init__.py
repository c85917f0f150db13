"""The contract suite: what every algorithm and primitive must keep, checked without processes."""

from relaxcomm.checks.finding import Finding
from relaxcomm.checks.suite import check

__all__ = ["Finding", "check"]
