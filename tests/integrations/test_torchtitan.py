"""torchtitan's own trainer and model, sharded inside replicas that exchange by an algorithm."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.ranks import launch_script

pytest.importorskip("torchtitan")

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(900)]
SOURCE = Path(__file__).with_name("titan_scenarios.py")


def found_by(ranks, scenario, folder):
    """What each rank has seen."""
    source = f"import runpy; runpy.run_path({str(SOURCE)!r}, run_name='__main__')"
    done = launch_script(source, ranks, timeout=800, arguments=[scenario, str(folder)])
    assert [one.returncode for one in done] == [0] * ranks, [one.stderr[-3000:] for one in done]
    return [pickle.loads((folder / f"found-{rank}").read_bytes()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return found_by(4, "four", tmp_path_factory.mktemp("four"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return found_by(3, "three", tmp_path_factory.mktemp("three"))


def first_and_second(four):
    """Ranks that hold the same shard of the first and the second replica."""
    return zip(four[:2], four[2:], strict=True)


def test_bsp_is_what_torchtitan_does_itself(three, four):
    for one in [*three, *four]:
        for ours, native in zip(one["bsp"]["history"], one["native"]["history"], strict=True):
            np.testing.assert_allclose(ours, native, rtol=1e-5, atol=1e-6)


def test_a_failure_is_the_ranks_own_and_told_to_the_others(three):
    first, second, third = [one["failed"] for one in three]
    assert second == ("no data", True)
    for text, closed in (first, third):
        assert "rank 1" in text
        assert "no data" in text
        assert closed


def test_accumulated_steps_are_the_same_and_exchanged_once(four):
    for one in four:
        ours, native = one["bsp, accumulated"], one["native, accumulated"]
        np.testing.assert_allclose(ours["end"], native["end"], rtol=1e-4, atol=1e-5)
        assert sent(ours) == sent(one["bsp"])


def sent(run):
    return run["logged"][-1]["relaxcomm/bytes_sent"]


def test_statistics_are_among_torchtitans_metrics(four):
    counts = [metrics["relaxcomm/steps"] for metrics in four[0]["bsp"]["logged"]]
    assert counts == list(range(1, 7))


def test_local_sgd_averages_replicas_after_each_round(four):
    for first, second in first_and_second(four):
        ours, theirs = first["local_sgd"]["history"], second["local_sgd"]["history"]
        assert np.abs(ours[2] - theirs[2]).max() > 1e-6
        np.testing.assert_array_equal(ours[3], theirs[3])
        np.testing.assert_array_equal(first["local_sgd"]["end"], second["local_sgd"]["end"])


@pytest.mark.parametrize("algorithm", ["ssp", "d_psgd"])
def test_servers_and_gossip_train(four, algorithm):
    for first, second in first_and_second(four):
        np.testing.assert_array_equal(first[algorithm]["end"], second[algorithm]["end"])
        losses = [metrics["loss_metrics/global_avg_loss"] for metrics in first[algorithm]["logged"]]
        assert losses[-1] < losses[0] - 0.5


def test_bf16_keeps_replicas_equal(four):
    for first, second in first_and_second(four):
        np.testing.assert_array_equal(first["bf16"]["end"], second["bf16"]["end"])
        assert np.abs(first["bf16"]["end"] - first["bsp"]["end"]).max() > 0


@pytest.mark.parametrize("algorithm", ["local_sgd", "diloco"])
def test_a_run_goes_on_bit_for_bit(four, algorithm):
    for one in four:
        whole, again = one[f"resumed {algorithm}"]
        assert len(again) == 3
        np.testing.assert_array_equal(again, whole)


def test_a_checkpoint_holds_the_mean_model(four):
    """Under local_sgd the replicas differ at step 6; what a rank holds begins with the embeddings."""
    for shard, (first, second) in enumerate(first_and_second(four)):
        saved = first["saved"].reshape(2, -1)[shard][::16]
        ours, theirs = first["resumed local_sgd"][0][-1], second["resumed local_sgd"][0][-1]
        assert np.abs(ours - theirs).max() > 1e-6
        np.testing.assert_allclose(saved, ((ours + theirs) / 2)[: saved.size], rtol=1e-5, atol=1e-7)


def test_a_checkpoint_of_torchtitan_alone_is_refused(four):
    for rank, one in enumerate(four):
        assert f"has no relaxcomm-{rank}-of-4: it was saved without" in one["foreign"]


def test_what_cannot_be_is_refused(four):
    for one in four:
        assert "tensor_parallel_degree above 1" in one["refused"]["tensor"]
        assert "data_parallel_replicate_degree is 1" in one["refused"]["one"]
        assert "global_batch_size is 7, which 2 replicas" in one["refused"]["batch"]
