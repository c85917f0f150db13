"""Quantities are told with three digits, in a unit that suits them."""

import pytest

from relaxcomm.system.quantities import bandwidth, data_size, duration


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (1000, "1 kB"), (2.5e9, "2.5 GB"), (3e15, "3,000 TB")],
)
def test_data_size(size, text):
    assert data_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 s"), (1e-5, "0.01 ms"), (0.5, "500 ms"), (0.9996, "1 s"), (1.234, "1.23 s")),
        *((119, "119 s"), (120, "2 min"), (1e4, "2.78 h"), (1e6, "11.6 days"), (1e8, "1,157 days")),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("bits", "text"),
    [(500, "0.5 kbit/s"), (1e6, "1 Mbit/s"), (25e9, "25 Gbit/s"), (2e12, "2,000 Gbit/s")],
)
def test_bandwidth(bits, text):
    assert bandwidth(bits / 8) == text
