"""The state of a run for another number of ranks."""

from relaxcomm.carry.model import with_means as with_means
from relaxcomm.carry.run import carry as carry
