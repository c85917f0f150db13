"""The state of a run for another number of ranks."""

from relaxcomm.carry.run import carry as carry
