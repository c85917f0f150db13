"""What a launcher says is checked before it is believed."""

import pytest

from relaxcomm import ConfigError
from relaxcomm.system.environment import attempt_in_store, check_rendezvous, launched

TOGETHER = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}


@pytest.fixture
def started(monkeypatch):
    def start(**changes):
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
        for name, value in {**TOGETHER, **changes}.items():
            if value is not None:
                monkeypatch.setenv(name, value)

    return start


def test_a_good_start_is_read(started):
    started(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    here = launched()
    assert (here.rank, here.world_size, here.local_rank, here.local_world_size) == (1, 2, 1, 2)
    check_rendezvous()


def test_a_number_may_begin_with_zeros(started):
    started(MASTER_PORT="029500", RANK="0" * 10 + "1", LOCAL_RANK="000")
    assert (launched().rank, launched().local_rank) == (1, 0)
    check_rendezvous()


def test_a_rank_needs_a_world(started):
    started(WORLD_SIZE=None)
    with pytest.raises(ConfigError, match="RANK is 1 and WORLD_SIZE is 1; ranks go from 0 to WORLD_SIZE - 1"):
        launched()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"RANK": "one"}, "RANK is 'one'; it is a whole number from 0 to 999999999, and a launcher"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"RANK": "2"}, "RANK is 2 and WORLD_SIZE is 2; ranks go from 0 to WORLD_SIZE - 1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'; it is a whole number from 1"),
        ({"WORLD_SIZE": "٣"}, "WORLD_SIZE is '٣'"),
        ({"LOCAL_RANK": "9" * 5000}, "LOCAL_RANK is '9999"),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "2"}, "local ranks go from 0 to LOCAL_WORLD_SIZE - 1"),
        ({"MASTER_PORT": None}, "WORLD_SIZE is 2, but MASTER_PORT is not set; start with torchrun"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT is '70000'; it is a whole number from 1 to 65535"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is '0'"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is ''; it is the name or address of rank 0's host"),
        ({"RANK": None}, "RANK is not set"),
    ],
)
def test_a_bad_start_is_refused(started, changes, says):
    started(**changes)
    with pytest.raises(ConfigError) as caught:
        check_rendezvous()
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("holds", "attempt"), [("True", 2), ("False", 0), (None, 0)])
def test_attempts_are_told_apart_only_where_they_share_a_store(started, holds, attempt):
    """Hosts count their own workers' failures, so that ranks of one attempt may have other counts."""
    started(TORCHELASTIC_RESTART_COUNT="2", TORCHELASTIC_USE_AGENT_STORE=holds)
    assert attempt_in_store() == attempt
