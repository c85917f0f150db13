"""The contract suite, what every algorithm and primitive must keep, and trials without processes."""

from relaxcomm.checks.finding import Finding
from relaxcomm.checks.rehearse import Rehearsal, rehearse
from relaxcomm.checks.round_trip import round_trip
from relaxcomm.checks.suite import check
from relaxcomm.checks.trajectory import perform, trajectory

__all__ = ["Finding", "Rehearsal", "check", "perform", "rehearse", "round_trip", "trajectory"]
