"""The lab's arithmetic on made-up records, and a small crew on real hosts."""

import json
import math
import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.lab import compare, counted, report, standard
from benchmarks.lab.crew import crew
from benchmarks.lab.entries import ENTRIES
from benchmarks.lab.network import NetworkUnavailableError
from benchmarks.lab.quality import NEVER, Reached, reached
from benchmarks.lab.trial import Job
from benchmarks.lab.tuning import Grid, Tuned, job_of, tune
from tests.waiting import until


def record(own, mean, **more):
    points = [(4 * i + 4, 1.0 * i + 1, 100 * i + 100, *q) for i, q in enumerate(zip(own, mean, strict=True))]
    return {
        "workload": "digits",
        "workers": 4,
        "rate": None,
        "learning_rate": 0.1,
        "period": 8,
        "steps": 4 * len(points),
        "seconds": 1.0 * len(points),
        "bytes_sent": 100 * len(points),
        "points": points,
        "communication": {},
        "note": None,
        **more,
    }


def test_quality_counts_when_it_holds_three_times():
    run = record([0.9, 0.98, 0.9, 0.98, 0.98, 0.98], [0.9] * 6)
    assert reached(run, 0.97, True) == Reached(16, 4.0, 400)
    assert reached(record([0.98, 0.98, 0.9], [0.9] * 3), 0.97, True) == NEVER


def test_a_mean_costs_a_last_average():
    run = record([0.9] * 3 + [0.98] * 3, [0.98] * 6)
    assert reached(run, 0.97, True, (2.5, 70)) == Reached(4, 3.5, 170)
    assert reached(run, 0.97, True, (9.0, 70)) == Reached(16, 4.0, 400)  # waiting is cheaper


def test_lower_can_be_better():
    assert reached(record([3.5, 3.3, 3.2, 3.1], [4.0] * 4), 3.4, False).steps == 8


class MadeUpCrew:
    """Reaches the target in `8 / learning_rate` steps, and a step takes a second at "slow"."""

    workers = 4

    def __init__(self):
        self.jobs = []

    def run(self, job, rate):
        self.jobs.append((job, rate))
        steps = job.steps or 144
        seconds = (1.0 if rate == "slow" else 0.01) * steps + 0.001
        every = 4 if job.every is None else job.every
        points = (
            [
                (step, seconds * step / steps, step, *(2 * [float(step >= 8 / job.learning_rate)]))
                for step in range(every, steps + 1, every)
            ]
            if every
            else []
        )
        return record(
            [],
            [],
            points=points,
            rate=rate,
            steps=steps,
            seconds=seconds,
            contender=job.contender,
            learning_rate=job.learning_rate,
            communication={"average": 0.5},
        )


def test_tuning_takes_the_setting_that_promises_the_least_time():
    hosts, logged = MadeUpCrew(), []
    chosen = tune(
        hosts,
        "digits",
        [ENTRIES["ddp"], ENTRIES["ddp_fp16"]],
        ["slow"],
        Grid((0.1, 0.2), seeds=(7,)),
        lambda kind, one: logged.append(kind),
    )
    assert {one.learning_rate for one in chosen.values()} == {0.2}
    assert chosen["ddp_fp16", "slow"].steps == chosen["ddp", "slow"].steps == 40
    assert logged.count("tuning") == 2, "DDP in half precision takes as many steps"
    assert chosen["ddp", "slow"].seconds == pytest.approx(40 * 16.001 / 16)


def test_trials_of_earlier_results_are_not_run_again(tmp_path):
    """The same rate and seed are taken from the file, another rate and other settings are run."""
    job = job_of(ENTRIES["ddp"], "digits", 0.1, 1, 7)
    earlier = {**record([0.0] * 9 + [1.0] * 3, [0.0] * 12), **asdict(job), "label": "ddp"}
    other = {**earlier, "contender": "periodic_averaging"}
    lines = [{"kind": "environment"}, {"kind": "tuning", **earlier}, {"kind": "tuning", **other}]
    lines.append({"kind": "final", **earlier, "learning_rate": 0.2})
    path = tmp_path / "lab-before.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    hosts, logged = MadeUpCrew(), []
    grid = Grid((0.1, 0.2), seeds=(7,), counted=counted.read([path]))
    chosen = tune(hosts, "digits", [ENTRIES["ddp"]], ["slow"], grid, lambda kind, one: logged.append(one))
    assert chosen["ddp", "slow"].steps == 40
    assert [one.get("counted_in") for one in logged[:2]] == ["lab-before.jsonl", None]
    assert [job.learning_rate for job, rate in hosts.jobs if rate is None] == [0.2]
    again = MadeUpCrew()
    again.workers = 8
    tune(again, "digits", [ENTRIES["ddp"]], ["slow"], grid, lambda kind, one: None)
    assert [job.learning_rate for job, rate in again.jobs if rate is None] == [0.1, 0.2]


def test_a_grid_leaves_out_periods():
    entry = ENTRIES["periodic_averaging"]
    assert Grid(periods=(8, 99)).periods_of(entry) == (8,)
    assert Grid(periods=(99,)).periods_of(ENTRIES["ddp"]) == (1,)
    assert Grid().periods_of(entry) == entry.periods


def test_trials_may_be_longer_than_the_workload_says():
    hosts = MadeUpCrew()
    tune(hosts, "digits", [ENTRIES["ddp"]], ["slow"], Grid((0.1,), seeds=(7,), steps=500), lambda *_: None)
    assert [job.steps for job, rate in hosts.jobs if rate is None] == [500]


def test_workers_are_judged_where_they_have_just_averaged():
    job = job_of(ENTRIES["relaxcomm local_sgd, 8 bits, late"], "digits", 0.1, 16, 0)
    assert (job.every, job.offset) == (16, 4)
    assert job.settings["algorithm"]["delay"] == 4
    assert job_of(ENTRIES["ddp"], "digits", 0.1, 1, 0, every=0).every == 0


def test_what_takes_too_long_is_derived_and_says_so():
    logged = []
    tuned = Tuned(0.1, 1, 80, 1.0)
    standard._final(
        MadeUpCrew(), "digits", ENTRIES["ddp"], "slow", 0, tuned, 240, lambda kind, one: logged.append(one)
    )
    (one,) = logged
    assert one["derived"]
    assert one["rate"] == "slow"
    assert reached(one, 0.97, True).seconds == 80 * 1.0


def test_uneven_steps_are_derived_from_bytes():
    """All hosts send a byte a step, each a quarter of it over a link of a byte in 10 seconds."""
    logged = []
    tuned = Tuned(0.1, 1, 80, 1.0)
    entry = ENTRIES["relaxcomm selsync"]
    standard._final(
        MadeUpCrew(), "digits", entry, "0.0008kbit", 0, tuned, 240, lambda kind, one: logged.append(one)
    )
    (one,) = logged
    assert one["derived"]
    unshaped = (0.01 * one["steps"] + 0.001) / one["steps"]
    assert reached(one, 0.97, True).seconds == pytest.approx(80 * (unshaped + 10 / 4))


def finals():
    average = record([], [], kind="last average", communication={"average": 0.5}, steps=5, bytes_sent=50)
    nothing = record([], [], kind="final", label="nothing", steps=10, seconds=1.0)
    fast = [
        record([0.98] * 3, [0.98] * 3, kind="final", label="relaxcomm auto", note="chose well", seed=seed)
        for seed in range(3)
    ]
    slow = record([0.9, 0.98, 0.98, 0.98], [0.9] * 4, kind="final", label="ddp", derived=True)
    return [average, nothing, *fast, slow]


def test_the_report_orders_by_time_and_shows_the_limit(tmp_path):
    (table,) = report.tables(finals())
    assert [row.label for row in table.rows] == ["relaxcomm auto", "ddp"]
    assert table.limit == pytest.approx(8 * 0.1)  # DDP's steps, each as long as one without communication
    text = report.markdown([table])
    assert "| ddp | lr 0.1, every 8 | 2 [2] (derived) |" in text
    assert "relaxcomm auto: chose well" in text
    report.plot([table], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.parametrize("with_ddp", [True, False])
def test_without_peers_the_limit_has_the_steps_of_our_own_bsp(with_ddp):
    own = record([0.9, 0.9, 0.98, 0.98, 0.98], [0.9] * 5, kind="final", label="relaxcomm bsp")
    records = [*finals(), own]
    (table,) = report.tables([one for one in records if with_ddp or one.get("label") != "ddp"])
    assert table.limit == pytest.approx((8 if with_ddp else 12) * 0.1)
    text = report.markdown([table])
    assert ("(DDP's steps" if with_ddp else "(relaxcomm bsp's steps") in text
    assert "nan" not in text


def trials(label, seconds, hidden=None, **more):
    """Trials of 40 steps; the median step and the exposed time that is told are not those of the table."""
    told = [{}] * len(seconds) if hidden is None else [{"exposed": 9.0, "hidden": one} for one in hidden]
    return [
        record([0.98] * 3, [0.98] * 3, kind="final", label=label, step_seconds=0.7, **more)
        | {"steps": 40, "seconds": one, "communication": communication}
        for one, communication in zip(seconds, told, strict=True)
    ]


def test_the_report_splits_the_time_of_a_step():
    average = {"communication": {"average": 0.5}, "steps": 5, "bytes_sent": 50}
    records = [
        record([], [], kind="last average", **average),
        record([], [], kind="last average", rate="slow", **average),
        *trials("nothing", [0.4, 0.6, 0.48]),  # 10, 15 and 12 ms a step
        *trials("nothing", [0.16], rate="slow"),  # 4 ms
        *trials("ddp", [2.4, 1.6, 2.0]),  # 60, 40 and 50 ms
        *trials("ddp", [0.24], rate="slow"),  # 6 ms
        *trials("relaxcomm bsp", [0.8, 1.0, 0.6], [0.2, 0.12, 0.4]),  # 20, 25, 15; hidden 5, 3, 10
        *trials("hivemind", [0.4]),  # 10 ms, by chance less than nothing's
        *trials("post_local_sgd", [2.0], [0.2], derived=True),
    ]
    lines = [line for line in report.markdown(report.tables(records)).splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert {len(cells) for cells in found} == {12}
    assert found[0][8:] == ["step ms", "= compute", "+ exposed", "(hidden)"]
    assert {cells[0]: cells[8:] for cells in found[1:5]} == {
        "ddp": ["50.0", "12.0", "38.0", ""],
        "relaxcomm bsp": ["20.0", "12.0", "8.0", "5.0"],
        "hivemind": ["10.0", "12.0", "0.0", ""],
        "post_local_sgd": ["", "", "", ""],
    }
    assert found[6][8:] == ["6.0", "4.0", "2.0", ""], "each place has its own step that exchanges nothing"


def test_comparing_two_files():
    before, after = report.tables(finals()), report.tables(finals()[:-1])
    found = sorted(compare.lines(before, after))
    assert found == [
        "digits, 4 workers, unshaped, ddp: only before",
        "digits, 4 workers, unshaped, relaxcomm auto: 1 s -> 1 s, 1.00 times",
    ]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.ranks
def test_a_crew_counts_the_kernels_bytes_and_leaves_nothing_behind():
    def here():
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
        return {line.split()[0] for line in listed.stdout.splitlines()}

    try:
        with crew(3) as hosts:
            own = {host.namespace for host in hosts._hosts}  # other tests make theirs meanwhile
            assert own <= here()
            job = Job(workload="digits", contender="ddp", learning_rate=0.1, steps=8, every=4)
            runs = [hosts.run(job, rate) for rate in (None, "100mbit")]
            alone = hosts.run(Job(workload="digits", contender="nothing", learning_rate=0.1, steps=8), None)
            with pytest.raises(RuntimeError, match="no_such_algorithm"):
                hosts.run(
                    Job(
                        workload="digits",
                        contender="relaxcomm",
                        settings={"algorithm": "no_such_algorithm"},
                        learning_rate=0.1,
                    ),
                    None,
                )
    except NetworkUnavailableError as error:
        pytest.skip(str(error))
    except FileNotFoundError:
        pytest.skip("iproute2 is missing")
    assert len(own) == 3
    assert not own & here()
    parameters = sum(a * b + b for a, b in ((64, 512), (512, 512), (512, 256), (256, 10)))
    ring = 3 * 8 * 2 * (2 / 3) * 4 * parameters  # hosts, steps
    for run in runs:
        assert run["bytes_sent"] == pytest.approx(ring, rel=0.05)
        assert [point[0] for point in run["points"]] == [4, 8]
    assert runs[1]["seconds"] > runs[0]["seconds"]
    assert runs[1]["seconds"] > ring / 3 / 12.5e6 * 0.9, "a link sends no faster than its rate"
    assert alone["bytes_sent"] < 10_000
    assert math.isfinite(runs[0]["points"][-1][3])


def fail_in(hosts):
    try:
        hosts.ask({}, None)
    finally:
        for process in hosts._processes:
            process.kill()  # or they are given time to end


@pytest.mark.ranks
def test_a_host_that_fails_is_not_waited_for_by_way_of_the_others_and_leaves_nothing():
    with crew(3, network="throttle", module="tests.benchmarks.one_ends") as hosts:
        with pytest.raises(RuntimeError, match="this rank has failed") as failed:
            fail_in(hosts)
        left = int(re.search(r"left (\d+)", str(failed.value))[1])
        assert is_running(left)
    # A kill is asked for, and done a moment later.
    until(lambda: not is_running(left), f"the end of process {left}", 60)
    assert not is_running(left)


def is_running(process):
    status = Path(f"/proc/{process}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()
