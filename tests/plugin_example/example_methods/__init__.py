"""Methods that relaxcomm does not have, as a package of their author's."""

from example_methods.diverging_loss import diverging_loss
from example_methods.drawn_pairs import drawn_pairs
from example_methods.heavy_ball import heavy_ball
from example_methods.pair_average import pair_average
from example_methods.points_and_progress import points_and_progress
from example_methods.ring_of_sums import ring_of_sums
from example_methods.spring_pull import spring_pull
from example_methods.stochastic_cast import stochastic_cast

RELAXCOMM_PROTOCOL = 2

__all__ = [
    "RELAXCOMM_PROTOCOL",
    "diverging_loss",
    "drawn_pairs",
    "heavy_ball",
    "pair_average",
    "points_and_progress",
    "ring_of_sums",
    "spring_pull",
    "stochastic_cast",
]
