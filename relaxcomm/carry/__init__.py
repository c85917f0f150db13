"""The state of a run for another number of ranks."""

from relaxcomm.carry.model import carried_module as carried_module
from relaxcomm.carry.run import carry as carry
