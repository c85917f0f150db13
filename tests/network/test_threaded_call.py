"""A call in a thread of its own."""

from datetime import timedelta

import pytest

from relaxcomm.network.threaded_call import ThreadedCall


def test_what_the_call_raises_comes_to_who_waits():
    def fail() -> None:
        raise ValueError("no such device")

    call = ThreadedCall(fail)
    with pytest.raises(ValueError, match="no such device"):
        call.wait(timedelta(seconds=10))
    assert call.is_completed()
