"""Methods that relaxcomm does not have, as a package of their author's."""

from example_methods.diverging_loss import diverging_loss
from example_methods.elastic import elastic
from example_methods.heavy_ball import heavy_ball
from example_methods.pair_average import pair_average
from example_methods.random_pairs import random_pairs
from example_methods.slow_weights import slow_weights
from example_methods.stochastic_cast import stochastic_cast

RELAXCOMM_PROTOCOL = 1

__all__ = [
    "RELAXCOMM_PROTOCOL",
    "diverging_loss",
    "elastic",
    "heavy_ball",
    "pair_average",
    "random_pairs",
    "slow_weights",
    "stochastic_cast",
]
