"""What a job would listen on at public addresses, and what decides who joins."""

import pytest

from relaxcomm import config
from relaxcomm.doctor import exposure, interfaces

SECRET = {"membership": {"secret": {"env": "WORD"}}}


@pytest.fixture
def machine(monkeypatch):
    """A machine with a private and a public address."""
    known = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.7"], "eth1": ["8.8.4.4"]}
    monkeypatch.setattr(interfaces, "addresses", lambda: known)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)

    def made(master=None, gloo=None, torchrun=False):
        monkeypatch.delenv("MASTER_ADDR", raising=False)
        for name, value in (("MASTER_ADDR", master), ("GLOO_SOCKET_IFNAME", gloo)):
            if value is not None:
                monkeypatch.setenv(name, value)
        if torchrun:
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")

    return made


def found(settings=None):
    loaded = None if settings is None else config.load({"algorithm": "bsp", **settings})
    return {one.name: (one.level, one.text) for one in exposure.findings(loaded)}


def test_a_job_of_one_host_is_not_asked_about(machine):
    machine()
    assert found() == {}


@pytest.mark.parametrize(
    ("gloo", "torchrun", "settings", "level", "says"),
    [
        ("eth0", False, None, "ok", "at no public address"),
        (
            "eth1",
            False,
            None,
            "warning",
            "8.8.4.4, which are public, and whether a secret is asked for is not",
        ),
        ("eth1", False, {}, "warning", "no secret is asked for"),
        ("eth1", False, SECRET, "ok", "who joins needs membership.secret"),
        ("eth0", True, {}, "warning", "reached at 8.8.4.4"),
    ],
)
def test_a_public_address_without_a_secret_is_warned_of(machine, gloo, torchrun, settings, level, says):
    machine("10.0.0.1", gloo, torchrun)
    assert found(settings)["listening"][0] == level
    assert says in found(settings)["listening"][1]


@pytest.mark.parametrize(
    ("address", "warned"), [("127.0.0.1", False), ("10.0.0.7", False), ("0.0.0.0", True), ("8.8.4.4", True)]
)
def test_metrics_that_everybody_reads(machine, address, warned):
    machine()
    assert ("metrics" in found({"metrics": {"address": address}})) == warned
