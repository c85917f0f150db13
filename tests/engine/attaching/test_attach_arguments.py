"""A configuration that is broken on one rank is told to the others, which wait where theirs says."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.engine.attaching.attach_arguments import read
from tests.ranks import launch_script

MEETING = {"timeout_seconds": 7.0, "membership": {"elastic": True}, "debug": True}


@pytest.mark.parametrize(
    ("broken", "lost"),
    [
        ({"algorithm": "bps"}, set()),
        ({"algorithm": "bsp", "no_such_key": 1}, set()),
        ({"algorithm": "bsp", "timeout_seconds": -1}, {"timeout_seconds"}),
        ({"algorithm": "bsp", "membership": {"elastic": "yse"}}, {"membership"}),
    ],
)
def test_what_says_how_ranks_meet_is_read_by_itself(broken, lost):
    given = read(torch.nn.Linear(1, 1), None, MEETING | broken, None, None)
    assert given.settings is None
    assert given.problem is not None
    met = {
        "timeout_seconds": given.to_meet.timeout_seconds == 7.0,
        "membership": given.to_meet.membership.elastic,
        "debug": given.to_meet.debug,
    }
    assert {key for key, is_kept in met.items() if not is_kept} == lost


ATTACH = """
import os, torch, relaxcomm
os.environ["SHARED"] = "0123456789abcdef" * 2
rank = int(os.environ["RANK"])
model = torch.nn.Linear(2, 1)
membership = {"elastic": True, "secret": {"env": "SHARED"}}
config = {"algorithm": "bps" if rank == 1 else "bsp", "membership": membership, "timeout_seconds": 20}
relaxcomm.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
"""


def test_of_an_elastic_run_with_a_secret_every_rank_is_told():
    said = "relaxcomm.errors.ConfigError: rank 1: configuration: unknown algorithm 'bps'"
    for done in launch_script(ATTACH, 3, timeout=60):
        assert done.stderr.strip().splitlines()[-1].startswith(said), done.stderr
