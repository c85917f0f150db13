"""GaussianK's rule on the device against the rule as it is told."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
import torch

from relaxcomm.kernels.dispatch import implementation
from relaxcomm.kernels.magnitude_statistics import magnitude_statistics
from relaxcomm.kernels.magnitudes import LARGEST_FINITE
from relaxcomm.kernels.normal_threshold import normal_threshold
from relaxcomm.primitives import gaussian_k
from relaxcomm.primitives.compressors.threshold_search import Magnitudes
from tests.kernels.comparing import KINDS, SIZES, both, counter, entries
from tests.kernels.interpreter import DEVICE

DENSITY = 0.001


def rule(x, density=DENSITY, fallback=True):
    """The threshold's bits for a tensor, from statistics that both implementations are given alike."""
    k = max(1, int(density * x.numel()))
    with implementation("torch"):
        found = magnitude_statistics(x)
    return lambda: normal_threshold(
        found,
        k=k,
        capacity=min(x.numel(), -(-4 * k // 3)),
        quantile=-NormalDist().inv_cdf(density / 2),
        fallback=fallback,
    )


def threshold(x, **options):
    with implementation("torch"):
        return rule(x, **options)().view(torch.float32).item()


@pytest.mark.every_other("numel", "kind")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numel", SIZES)
def test_both_implementations_decide_alike(numel, kind, kernels):
    for density in (0.001, 0.1, 1.0):
        for fallback in (True, False):
            found, expected = both(rule(entries(numel, kind=kind), density, fallback))
            assert torch.equal(found, expected)


@pytest.mark.parametrize("draw", ["offset", "laplace", "t4", "t2", "uniform", "few"])
def test_both_decide_alike_where_thresholds_are_refined(draw, kernels):
    found, expected = both(rule(drawn(draw, 20_000), 0.01))
    assert torch.equal(found, expected)


def drawn(name, numel):
    """Entries of a distribution on which the first threshold misses."""
    numbers = np.random.default_rng(0)
    made = {
        "normal": lambda: numbers.standard_normal(numel),
        "offset": lambda: numbers.standard_normal(numel) - 30,
        "laplace": lambda: numbers.laplace(size=numel),
        "t4": lambda: numbers.standard_t(4, numel),
        "t2": lambda: numbers.standard_t(2, numel),
        "uniform": lambda: numbers.uniform(-1, 1, numel),
        "few": lambda: numbers.standard_normal(numel) * (np.arange(numel) % 50 == 0),
    }[name]()
    return torch.from_numpy(made).float().to(DEVICE)


@pytest.mark.parametrize("name", ["normal", "laplace", "t4", "t2"])
def test_as_many_entries_as_the_rule_on_the_host_finds(name):
    """Counts differ by the evenness within a bin, thresholds by rounding alone."""
    x = drawn(name, 1_000_000)
    rule_on_host, moments = gaussian_k(density=DENSITY, fallback=None), Magnitudes(x).moments()
    tried = rule_on_host.search(counter(x), moments, DENSITY, x.numel())
    expected, count = tried[-1]
    found = threshold(x, fallback=False)
    if count <= 4 / 3 * 1000:
        assert found == pytest.approx(expected, rel=1e-6)
    else:  # the message cannot hold them: about as many as it can, the largest
        assert 1000 < counter(x)(found) <= 1334


def test_too_few_above_the_last_threshold_means_about_the_k_largest():
    x = drawn("uniform", 100_000)
    count = counter(x)
    search = gaussian_k(density=0.01).search(count, Magnitudes(x).moments(), 0.01, x.numel())
    assert search[-1][1] < 667
    assert count(threshold(x, density=0.01)) in range(667, 1334)
    assert count(threshold(x, density=0.01, fallback=False)) < 667


def test_equal_entries_fill_the_message():
    assert (entries(3000, kind="equal").abs() > threshold(entries(3000, kind="equal"))).all()


def test_only_entries_that_are_not_finite_exceed_the_threshold_of_such_a_tensor():
    with implementation("torch"):
        key = rule(entries(1025, kind="infinite"))()
    assert key.item() == LARGEST_FINITE


def test_zeros_are_never_sent():
    x = torch.zeros(1000, device=DEVICE)
    x[3] = 1e-42
    assert 0 <= threshold(x, density=0.5) < 1e-42
