"""What errors recommend in the place of what does not fit is there for users."""

import pytest

from relaxcomm import CompositionError, Rule
from relaxcomm.checks import trial_coders  # a user's run of `relaxcomm check` has them
from relaxcomm.primitives import all_reduce, gradients, top_k


def test_compressors_of_trials_are_not_recommended():
    with pytest.raises(CompositionError, match="a compressor such as") as raised:
        Rule(payload=gradients(), exchange=all_reduce(), compressor=top_k(density=0.01))
    for trial in (trial_coders.largest, trial_coders.in_two_rounds):
        assert trial.__name__ not in str(raised.value)
