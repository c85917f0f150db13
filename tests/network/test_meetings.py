"""Ranks that do different things learn it, all of them, and nothing is mixed."""

from __future__ import annotations

import os

import pytest
import torch

from relaxcomm.errors import CommunicationError
from relaxcomm.network import TorchTransport
from relaxcomm.network.liveness import _cause
from relaxcomm.network.meetings import Apart, Header, Meetings, check_headers, parting
from relaxcomm.network.operations import AllReduce, Label
from relaxcomm.network.processes import condition_of, this_process
from relaxcomm.network.status import Status
from relaxcomm.network.trail import Trail
from tests.engine.harness import World, in_process, on_gloo
from tests.models import CASES, take_step, trainable
from tests.ranks import run_ranks

DILOCO = {"name": "diloco", "steps": 4}


def trail_of(*labels: Label) -> Trail:
    trail = Trail()
    for label in labels:
        trail.add(AllReduce(torch.empty(3)), label)
    return trail


def test_a_digest_tells_order_step_and_place():
    first, second = Label(1, "0", 0), Label(1, "0", 1)
    digests = [
        trail_of(*labels).digest
        for labels in (
            (first, second),
            (second, first),
            (first, Label(2, "0", 1)),
            (first, Label(1, "1", 1)),
            (first,),
        )
    ]
    assert len(set(digests)) == len(digests)
    assert trail_of(first, second).digest == digests[0] == 17783186702125537882  # in every process


def test_ranks_that_part_are_told_where():
    one, other = trail_of(Label(1, "0"), Label(2, "0")), trail_of(Label(1, "0"), Label(3, "1"), Label(4, "0"))
    headers = [Header("close()", 5, trail.count, trail.digest) for trail in (one, one, other)]
    check_headers(headers)
    text = str(parting(headers, [one.recent(), one.recent(), other.recent()]))
    assert "as operation 1 ranks 0, 1 issued AllReduce [3] torch.float32 at step 2, rule 0" in text
    assert "rank 2 issued AllReduce [3] torch.float32 at step 3, rule 1" in text


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (
            [("averaged()", 3), ("close()", 9)],
            "rank 0 is at averaged() in step 3; rank 1 is at close() in step 9",
        ),
        ([("close()", 3), ("close()", 9)], "every rank must take as many steps"),
    ],
)
def test_events_that_differ_are_refused(places, said):
    with pytest.raises(Apart, match="ranks are not at the same place") as caught:
        check_headers([Header(event, step, 0, 0) for event, step in places])
    assert said in str(caught.value)


class Alone:
    """Groups of one rank."""

    def __init__(self):
        self.lengths = []

    def gather_bytes(self, row):
        self.lengths.append(len(row))
        return row.unsqueeze(0), None


@pytest.mark.parametrize("event", ["e" * 700, "\u2028é]\n" * 300, "a path, \udce9"])
def test_headers_are_of_one_length_however_long_the_event(event):
    groups = Alone()
    meetings = Meetings(groups, Trail(), lambda work, state, at: None)
    assert meetings.meet("short", 3, b"mine") == meetings.meet(event, None, b"mine") == [b"mine"]
    assert groups.lengths == [512, 4, 512, 4]


@pytest.mark.parametrize(
    ("theirs", "mine", "expected"),
    [
        (("meets", 0, 5), ("waits", 0, 5), True),  # they never issue what I wait for
        (("meets", 0, 6), ("waits", 0, 5), False),  # it is on its way
        (("meets", 0, 5), ("waits", 1, 5), False),  # old news: I have passed that event, so they have
        (("waits", 0, 5), ("meets", 0, 5), True),
        (("waits", 0, 4), ("meets", 0, 5), False),
        (("serves", 1, 4), ("meets", 1, 5), True),
        (("meets", 1, 4), ("asks", 1, 0), False),  # its service answers all the same
    ],
)
def test_who_never_comes(theirs, mine, expected):
    statuses = [Status(state, state, events, count) for state, events, count in (theirs, mine)]
    assert statuses[0].never_comes_to(statuses[1]) is expected


def test_failures_that_tell_of_each_other_are_told_once():
    origin = "failed: CommunicationError: rank 3 at close(): rank 0 is at averaged()"
    statuses = {rank: Status("failed", origin.replace("rank 0 is", f"rank 3 {origin}")) for rank in range(40)}
    statuses[3] = Status("failed", origin)
    assert _cause(Status("meets", "is at close()"), statuses, {}).words == f"rank 3 {origin}"


def test_of_many_ranks_an_error_names_the_first():
    statuses = {rank: Status("meets", "is at averaged()", 0, 5) for rank in range(40)}
    said = _cause(Status("waits", "waits", 0, 5), statuses, {}).words
    assert said.startswith("rank 0 is at averaged(): every rank must do the same; rank 1 is")
    assert said.endswith("; and 24 others")


def test_a_rank_that_ends_before_others_is_told_of_uneven_inputs():
    ends, trains = (
        Status("meets", "is at close() in step 5", 0, 5),
        Status("waits", "waits for gradients", 0, 5),
    )
    for mine, other in ((ends, trains), (trains, ends)):
        said = _cause(mine, {1: other}, {}).words
        assert said.startswith(
            f"rank 1 {other.words}: every rank must take as many steps; batches may run out"
        )


def test_a_status_survives_the_store():
    status = Status("failed", "failed: ValueError: two words", 3, 4)
    assert Status.decode(status.encode()) == status


def test_the_condition_of_a_process_is_seen_on_its_host_alone():
    assert condition_of(this_process()) == ""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    place = this_process().partition(" ")[2]
    assert "has ended" in condition_of(f"{child} {place}")
    assert condition_of(f"{child} elsewhere") == ""
    os.waitpid(child, 0)
    assert "has ended" in condition_of(f"{child} {place}")


def goes_its_own_way(world: World, algorithm, what: str) -> str:
    """What rank 0, which does something alone, and the others are told."""
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain", seed=0)
    alone = world.rank == 0
    try:
        with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
            for step in range(8 - 3 * (alone and what == "fewer batches")):
                take_step(case.local_loss(model, step, world.rank), optimizer)
                if alone and what == "averaged" and step == 2:
                    with engine.averaged():
                        pass
                if alone and what == "state_dict" and step == 2:
                    engine.state_dict()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def mixes(rank: int) -> str:
    transport = TorchTransport.of(
        None, device=torch.device("cpu"), backend="gloo", timeout_seconds=20, debug=False
    )
    transport.meet("the beginning")
    transport.issue(AllReduce(torch.ones(2)), Label(7, "1" if rank == 2 else "0")).wait()
    try:
        transport.meet("averaged()", 8)
    except CommunicationError as error:
        return str(error)
    return "nothing"


@pytest.mark.ranks
def test_operations_that_were_mixed_are_named_at_the_next_event():
    for rank, told in enumerate(run_ranks(mixes, 3)):
        assert f"rank {rank} at averaged(): ranks have issued different operations" in told
        assert "as operation 0 ranks 0, 1 issued AllReduce [2] torch.float32 at step 7, rule 0" in told
        assert "rank 2 issued AllReduce [2] torch.float32 at step 7, rule 1" in told


def mixes_for_long(rank: int) -> tuple[int, str]:
    """How many operations were issued before the ranks noticed, and what they were told."""
    transport = TorchTransport.of(
        None, device=torch.device("cpu"), backend="gloo", timeout_seconds=20, debug=False
    )
    for step in range(5000):
        try:
            label = Label(step, "1" if rank == 2 and step > 1000 else "0")
            transport.issue(AllReduce(torch.ones(2)), label).wait()
        except CommunicationError as error:
            return step, str(error)
    return 5000, "nothing"


@pytest.mark.ranks
def test_operations_that_are_mixed_are_noticed_without_an_event():
    for issued, told in run_ranks(mixes_for_long, 3):
        assert issued <= 2048
        assert "as operation 1001 ranks 0, 1 issued AllReduce [2] torch.float32 at step 1001, rule 0" in told


CASES_ALONE = [
    (DILOCO, "averaged", "averaged() in step 3"),
    ("bsp", "averaged", "averaged() in step 3"),
    (DILOCO, "fewer batches", "close() in step 5"),
    ("bsp", "fewer batches", "close() in step 5"),
    ("d_psgd", "averaged", "averaged() in step 3"),
    ({"name": "ssp", "staleness": 20}, "averaged", "averaged()"),
    ({"name": "ssp", "staleness": 20}, "state_dict", "state_dict()"),
]


@pytest.mark.every_other("algorithm", "what")
@pytest.mark.ranks
@pytest.mark.parametrize(("algorithm", "what", "place"), CASES_ALONE)
def test_what_one_rank_does_alone_is_an_error_on_all(algorithm, what, place):
    told = on_gloo(goes_its_own_way, 3, algorithm, what)
    assert all(one.startswith("CommunicationError") for one in told), told
    assert all(place in one for one in told), told


@pytest.mark.parametrize(("algorithm", "what", "place"), CASES_ALONE[:4])
def test_the_in_process_network_sees_the_same_mistakes(algorithm, what, place):
    told = in_process(goes_its_own_way, 3, algorithm, what)
    assert all("Error" in one for one in told), told
    assert any(place in one for one in told), told
