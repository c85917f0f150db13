"""What a link's rate is said to be, by what messages took on it."""

import math

import pytest

from relaxcomm.planner.link_probes import Probe, bytes_per_second, probe_sizes

MBIT = 1e6 / 8


def ring(size: int, kib: float) -> int:
    """The bytes that a rank sends to sum so many KiB over a ring."""
    return int(2 * (size - 1) / size * kib * 1024)


def test_latency_that_adds_to_the_transfer_is_taken_off():
    probes = [Probe(32, 0.060), Probe(100_000, 0.070), Probe(200_000, 0.080), Probe(400_000, 0.100)]
    assert bytes_per_second(probes) == pytest.approx(1e7)


@pytest.mark.parametrize(
    ("size", "probes"),
    [  # what processes on two cores took over links of 100 Mbit/s: KiB, and milliseconds
        (4, [(0.03, 2.3), (128, 3), (256, 32.5)]),
        (4, [(0.03, 6.4), (128, 10), (256, 32.5)]),
        (8, [(0.06, 12), (128, 16), (256, 38), (512, 76.5)]),
        (8, [(0.06, 18), (128, 16), (256, 22), (512, 76.5)]),
    ],
)
def test_latency_that_hides_behind_the_transfer_is_not(size, probes):
    rate = bytes_per_second([Probe(ring(size, kib), taken / 1e3) for kib, taken in probes])
    assert rate == pytest.approx(97 * MBIT, rel=0.03)


def test_noise_cannot_make_a_link_faster_than_without_its_latency():
    probes = [Probe(32, 0.010), Probe(200_000, 0.040), Probe(400_000, 0.041)]
    assert bytes_per_second(probes) == pytest.approx(400_000 / 0.031)


@pytest.mark.parametrize("seconds", [0.009, 0.010, 0.01001])
def test_a_transfer_that_noise_hides_takes_a_hundredth_of_its_probe(seconds):
    assert bytes_per_second([Probe(32, 0.010), Probe(175_000, seconds)]) == pytest.approx(17.5e6 / seconds)


def test_a_probe_that_was_held_up_cannot_make_it_slower_than_the_last_one():
    probes = [Probe(32, 0.001), Probe(200_000, 0.9), Probe(400_000, 0.040)]
    assert 400_000 / 0.040 <= bytes_per_second(probes) <= 400_000 / 0.039


def test_one_probe_is_enough_where_it_takes_long():
    assert bytes_per_second([Probe(32, 0.02), Probe(150_000, 50.02)]) == pytest.approx(3e3, rel=1e-3)


def test_who_sends_nothing_has_a_link_without_a_limit():
    assert bytes_per_second([Probe(0, 0.0), Probe(0, 0.001)]) == math.inf


@pytest.mark.parametrize(
    ("parameter_bytes", "kib"),
    [(908, [128]), (60_000, [128, 256]), (10**6, [128, 256, 512, 1024, 2048, 4096]), (10**9, [128, 4096])],
)
def test_no_probe_is_far_larger_than_the_model(parameter_bytes, kib):
    sizes = probe_sizes(parameter_bytes)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1024 * kib[0], 1024 * kib[-1])
