"""The statistics, the memory reading and the process launcher that the benchmarks stand on."""

import atexit
import json
import os
import re
import time

import numpy as np
import pytest
import torch.distributed as dist

from benchmarks import measure, report


def noisy_rounds(scale: float, seed: int, drift: np.ndarray) -> list[list[float]]:
    noise = np.random.default_rng(seed).lognormal(0, 0.05, size=(len(drift), 20))
    return (scale * drift[:, None] * noise).tolist()


def test_ratio_is_of_medians_over_all_rounds():
    ratio = measure.ratio_of_medians([[1.0, 9.0], [5.0]], [[2.0], [2.0, 8.0]])
    assert ratio.value == 5.0 / 2.0


def test_interval_covers_the_truth_about_as_often_as_it_says():
    """Both sides share each round's drift, as on a machine that slows down and recovers."""
    covered = 0
    for seed in range(60):
        drift = np.random.default_rng(1000 + seed).uniform(0.8, 1.5, size=12)
        subject, reference = noisy_rounds(1.2, seed, drift), noisy_rounds(1.0, 500 + seed, drift)
        ratio = measure.ratio_of_medians(subject, reference, resamples=200)
        covered += ratio.low <= 1.2 <= ratio.high
    assert covered >= 50


def test_drift_that_both_sides_share_does_not_widen_the_interval():
    drift = np.linspace(1, 3, 12)
    subject, reference = noisy_rounds(1.0, 1, drift), noisy_rounds(1.0, 2, drift)
    paired = measure.ratio_of_medians(subject, reference)
    unpaired = measure.ratio_of_medians(subject, reference[::-1])
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)


def test_same_seed_same_interval():
    rounds = noisy_rounds(1.0, 1, np.ones(6)), noisy_rounds(1.0, 2, np.ones(6))
    assert measure.ratio_of_medians(*rounds) == measure.ratio_of_medians(*rounds)
    assert measure.ratio_of_medians(*rounds) != measure.ratio_of_medians(*rounds, seed=1)


@pytest.mark.parametrize(
    ("subject", "reference"), [([], []), ([[1.0]], [[1.0], [1.0]]), ([[1.0], []], [[1.0], [1.0]])]
)
def test_rounds_that_do_not_pair_up_are_refused(subject, reference):
    with pytest.raises(ValueError, match="both sides need the same number"):
        measure.ratio_of_medians(subject, reference)


def test_confidence_outside_its_range_is_refused():
    with pytest.raises(ValueError, match="it must lie in"):
        measure.ratio_of_medians([[1.0]], [[1.0]], confidence=95)


def memory_of(rank: int, mebibytes: int) -> dict[str, int]:
    peak = measure.PeakMemory()
    block = np.ones(mebibytes * 2**20, dtype=np.uint8)
    del block
    return {**peak.read(), "rank": rank}


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("mebibytes", [20, 200])
def test_peak_memory_counts_what_was_freed_and_leaves_out_the_baseline(mebibytes):
    reading = measure.run_ranks(memory_of, 1, mebibytes)
    assert reading["above_baseline_bytes"] == pytest.approx(mebibytes * 2**20, rel=0.05, abs=2**20)
    assert reading["process_bytes"] > reading["above_baseline_bytes"] + 50 * 2**20


def sum_or_fail(rank: int, failing_rank: int) -> list[int]:
    import torch
    import torch.distributed as dist

    if rank == failing_rank:
        raise ArithmeticError(f"rank {rank} was told to fail")
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    return [int(total), torch.get_num_threads(), os.getpid()]


@pytest.mark.slow
@pytest.mark.ranks
def test_run_ranks_returns_rank_0s_answer_from_other_processes():
    total, threads, pid = measure.run_ranks(sum_or_fail, 3, -1)
    assert (total, threads) == (6, 1)
    assert pid != os.getpid()


@pytest.mark.slow
@pytest.mark.ranks
def test_a_rank_that_fails_ends_the_run_with_its_reason():
    with pytest.raises(Exception, match="rank 1 was told to fail"):
        measure.run_ranks(sum_or_fail, 2, 1)


def fail_one_after_the_other(rank: int) -> None:
    """Rank 1 first, whose process then ends last."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        atexit.register(time.sleep, 3)
        atexit.register(store.set, "rank 1 has failed", "")
        raise RuntimeError("rank 1 was told to fail")
    store.wait(["rank 1 has failed"])
    raise RuntimeError("rank 1 is gone")


@pytest.mark.ranks
def test_the_first_failure_is_told_and_not_what_followed_from_it():
    with pytest.raises(RuntimeError, match="rank 1 was told to fail"):
        measure.run_ranks(fail_one_after_the_other, 2)


def sleep_or_end(rank: int) -> None:
    time.sleep(60 * rank)


@pytest.mark.ranks
def test_ranks_that_do_not_end_are_ended():
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match="did not end in"):
        measure.run_ranks(sleep_or_end, 2, limit_seconds=0.5)
    assert time.monotonic() - begin < 30


def ends_badly(rank: int, how: str) -> dict[str, float] | list[float]:
    """Rank 1 measures, and hangs or crashes when its group ends; or fails when rank 0 has measured."""
    if rank == 1 and how == "fail":
        time.sleep(1)
        raise RuntimeError("rank 1 was told to fail")
    if rank == 1:
        dist.destroy_process_group = lambda: time.sleep(60) if how == "hang" else os.abort()
    return {"seconds": 1.5} if how == "hang" else [1.5]


@pytest.mark.ranks
def test_what_is_measured_is_kept_when_a_rank_does_not_end(monkeypatch):
    monkeypatch.setattr(measure, "_END_SECONDS", 2)
    answer = measure.run_ranks(ends_badly, 2, "hang")
    note = answer.pop("not_ended")
    assert re.fullmatch(r"TimeoutError: ranks \[(0, )?1\] did not end in 2 s of the answer", note)
    assert answer == {"seconds": 1.5}


@pytest.mark.slow
@pytest.mark.ranks
def test_what_is_measured_is_kept_when_a_rank_crashes_as_it_ends():
    with pytest.warns(match="not all ranks have ended: ProcessExitedException: process 1 .*SIGABRT"):
        assert measure.run_ranks(ends_badly, 2, "crash") == [1.5]


@pytest.mark.slow
@pytest.mark.ranks
def test_a_rank_that_fails_behind_the_answer_has_failed():
    with pytest.raises(RuntimeError, match="rank 1 was told to fail"):
        measure.run_ranks(ends_badly, 2, "fail")


def test_a_folder_as_result_file_is_refused_before_anything_is_measured(tmp_path, capsys):
    parser = report.make_parser("result", "A benchmark.")
    with pytest.raises(SystemExit):
        parser.parse_args(["--output", str(tmp_path)])
    assert f"got {tmp_path}, which is a folder; name a file in it" in capsys.readouterr().err
    file = tmp_path / "new" / "result.json"
    assert parser.parse_args(["--output", str(file)]).output == file


def test_result_file_holds_ratios_and_the_environment(tmp_path):
    path = tmp_path / "new" / "result.json"
    report.write_result(
        path, {**report.environment(), "ratio": measure.Ratio(1.0, 0.9, 1.1), "times": [[1.5, 2.0], [3.0]]}
    )
    content = json.loads(path.read_text())
    assert content["ratio"] == {"value": 1.0, "low": 0.9, "high": 1.1}
    assert content["times"] == [[1.5, 2.0], [3.0]]
    assert "[1.5, 2.0]" in path.read_text()
    assert {"date", "commit", "versions", "machine"} <= set(content)
    assert content["machine"]["cores"] >= 1
    assert content["versions"]["torch"]
    with path.open() as opened:  # as whoever is ended while it writes
        report.write_result(path, {})
        assert json.load(opened) == content
