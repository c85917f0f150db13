"""What users try compositions with: a tensor, given moves, a short training run."""

import logging

import pytest
import torch

from relaxcomm import (
    Algorithm,
    CompositionError,
    ConfigError,
    Rule,
    UsageError,
    perform,
    rehearse,
    round_trip,
    trajectory,
)
from relaxcomm.checks import trial_problem
from relaxcomm.checks.finding import attempt
from relaxcomm.checks.trial_model import trial_model
from relaxcomm.checks.trial_problem import Trial
from relaxcomm.plugin import AllToAll
from relaxcomm.primitives import (
    all_reduce,
    error_feedback,
    gossip,
    gradients,
    parameters,
    power_sgd,
    top_k,
)
from relaxcomm_algorithms.auto import auto


def test_a_round_trip_keeps_shapes_and_state():
    matrix = torch.arange(6.0).view(2, 3)
    (first, second) = round_trip(error_feedback(compressor=top_k(density=0.2)), [matrix, 0 * matrix])
    assert first.tolist() == [[0, 0, 0], [0, 0, 5]]
    assert second.tolist() == [[0, 0, 0], [0, 4, 0]]


def test_a_round_trip_knows_the_shape_of_a_parameter():
    product = torch.outer(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0]))
    (same,) = round_trip(power_sgd(matrix_rank=1), [product])
    torch.testing.assert_close(same, product)


def test_an_operation_is_performed_on_every_rank():
    rows = torch.arange(9.0).view(3, 3)
    found = perform([AllToAll(row.clone()) for row in rows])
    torch.testing.assert_close(torch.stack(found), rows.T)


def selecting(*selects):
    rules = (Rule(payload=gradients(), exchange=all_reduce(), select=select) for select in selects)
    return Algorithm(tuple(rules), name="selecting")


@pytest.mark.parametrize(
    ("selects", "names"),
    [
        (["*"], ["weight", "bias"]),
        (["weight", "*ia*"], ["weight", "bias"]),
        (["head.*", ["encoder.*", "rows"]], ["head.a", "head.b", "encoder.a", "encoder.b", "rows"]),
        (["block.[qk].w", "block.[!q].v"], ["block.q.w", "block.a.v", "block.b.v"]),
        ([["head", "head.*"], ["body.*", "body"]], ["head", "body.a", "body.b"]),
        (["type.*", "*"], ["weight", "bias"]),
        ([f"{index}/6" for index in range(1, 7)], ["weight", "bias", *(f"layer_{one}" for one in range(4))]),
    ],
)
def test_a_trial_s_model_has_the_names_that_are_selected(selects, names):
    algorithm = selecting(*selects)
    assert dict(trial_model(algorithm, 12, 4).named_parameters()).keys() == set(names)
    found = rehearse(algorithm)
    assert found.replicas_equal
    assert found.loss == pytest.approx(rehearse("bsp").loss, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "frozen"), [("adapter.weight", "frozen_adapter.weight"), ("bias", "frozen_bias")]
)
def test_beside_the_only_selected_name_the_other_parameter_is_frozen(name, frozen):
    algorithm = selecting([name])
    trained = {name: one.requires_grad for name, one in trial_model(algorithm, 12, 4).named_parameters()}
    assert trained == {name: True, frozen: False}
    found = rehearse(algorithm, epochs=40)
    assert found.replicas_equal
    assert found.loss < 0.01


def test_rules_that_select_no_possible_name_are_still_refused():
    with pytest.raises(CompositionError, match=r"no rule selects the parameter 'bias'.*: type\.\*$"):
        rehearse(selecting("type.*"))


def test_a_trajectory_of_vectors_over_a_graph():
    moves = torch.tensor([[[3.0, 0.0], [0.0, 6.0], [0.0, 0.0], [0.0, 0.0]]])
    (found,) = trajectory(Rule(payload=parameters(), exchange=gossip()), moves, topology="ring")
    torch.testing.assert_close(found, torch.tensor([[1.0, 2], [1, 2], [0, 2], [1, 0]]))


def test_a_trajectory_refuses_what_attach_refuses():
    with pytest.raises(CompositionError, match="cannot use topology ring"):
        trajectory("selsync", [[1.0, 2.0, 3.0]], topology="ring")


@pytest.mark.parametrize("moves", [[[1.0, 2.0], [1.0]], [["x"]], None, [1.0, 2.0]], ids=str)
def test_moves_of_another_shape_are_refused(moves):
    with pytest.raises(UsageError, match=r"^moves .* are not allowed; give \[steps, ranks\], such as"):
        trajectory("bsp", moves)


def test_a_rehearsal_counts_what_it_did(caplog):
    with caplog.at_level(logging.WARNING, logger="relaxcomm"):
        alone, often = (rehearse({"name": "local_sgd", "steps": steps}) for steps in (100, 2))
    assert not caplog.records
    assert (alone.exchanges, alone.bytes_sent, alone.replicas_equal) == (0, 0, False)
    assert (often.exchanges, often.replicas_equal) == (6, True)
    assert 0 < often.loss < 0.6
    assert often.bytes_sent > 6 * 52 * 4


def test_a_rehearsal_follows_the_default_type():
    trial_problem._least_loss.cache_clear()
    losses = []
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            found = rehearse("bsp", epochs=1)
        finally:
            torch.set_default_dtype(torch.float32)
        assert found.replicas_equal
        losses.append(found.loss)
    trial_problem._least_loss.cache_clear()
    assert rehearse("bsp", epochs=1).loss == pytest.approx(losses[1], rel=1e-6)


def test_trials_take_the_mapping_that_attach_takes():
    local_sgd = {"name": "local_sgd", "steps": 4}
    assert rehearse({"algorithm": local_sgd}).exchanges == rehearse(local_sgd).exchanges == 3
    moves = [[3.0, 0.0, 0.0, 0.0]]
    ring = {"algorithm": "d_psgd", "topology": "ring"}
    assert trajectory(ring, moves).tolist() == trajectory("d_psgd", moves, topology="ring").tolist()
    assert trajectory(ring, moves, topology="complete").tolist() == trajectory("d_psgd", moves).tolist()
    with pytest.raises(ConfigError, match="unknown key 'steps'"):
        rehearse({"algorithm": "local_sgd", "steps": 4})


def test_a_rehearsal_takes_workers_an_optimizer_and_a_graph():
    found = rehearse("d_psgd", epochs=2, workers=4, topology="ring", make_optimizer=torch.optim.Adam)
    assert found.exchanges == 2 * 3
    assert not found.replicas_equal


def test_what_a_planner_chooses_in_a_trial_is_not_told(capsys):
    found = Trial(auto()).run(lambda rank: rank.epochs(4) and rank.engine.choice)
    assert "chose" in found[0]
    assert capsys.readouterr().err == ""


def test_a_check_runs_in_one_thread():
    """Small products of matrices, such as those of `dct_top_k`, take many times as long in two."""
    before, inside = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        attempt("it", "threads", lambda: inside.append(torch.get_num_threads()), 60)
        assert (inside, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)
