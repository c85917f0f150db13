"""`relaxcomm show`: what is drawn is what is declared."""

import pytest
from rich.console import Console
from typer.testing import CliRunner

from relaxcomm.cli import tree
from relaxcomm.cli.app import app
from relaxcomm.config import registry

NAMES = sorted(
    {*registry.algorithms(), *(name for found in registry.primitives().values() for name in found)}
)


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["show", *arguments], env={"COLUMNS": "40"})
    return done.exit_code, done.stdout, done.stderr


def facts(*arguments: str) -> dict[str, str]:
    """The plain lines by their names."""
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    return dict(line.split("  ", 1) for line in out.splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_is_discovered_can_be_shown(name):
    shown = facts(name)
    assert next(iter(shown)) == name
    assert all(" " not in key and text for key, text in shown.items())


def test_an_algorithm():
    shown = facts("diloco", "--set", "steps=7", "--workers", "3", "--parameters", "1000")
    assert shown["parameters.lr"] == "a finite number above 0: default 0.7; outer learning rate."
    assert shown["rule_0.trigger"].startswith("every(steps=7): Exchange after each")
    assert shown["rule_0.outer"].startswith("nesterov(lr=0.7, momentum=0.9): Nesterov")
    assert not any("facts" in name for name in shown), "those are shown of a primitive"
    # A ring of 3 sends 2 · 2/3 of 4,000 bytes.
    assert shown["rule_0.sends.3_workers"] == "5.33 kB an exchange, at most 762 B a step"
    assert shown["reference"].endswith("arXiv 2311.08105.")
    assert shown["provided_by"] == "relaxcomm"


OWN_RULES = """
algorithm:
  rules:
    - trigger: {every: {steps: 4}}
      payload: deltas
      compressor: {error_feedback: {quantize: {bits: 2}}}
      exchange: all_gather
      delay: 2
phases:
  - {after_steps: 100, algorithm: {name: d_psgd}}
workers: 3
"""


def test_a_configuration_is_shown_as_it_is_composed(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(OWN_RULES)
    shown = dict(line.split("  ", 1) for line in run(str(file))[1].splitlines()[1:])
    assert shown["topology"] == "complete()"
    assert shown["algorithm.rule_0.compressor"].startswith("error_feedback(compressor=quantize(bits=2)): Add")
    assert shown["algorithm.rule_0.delay"] == "2 steps"
    # 2 bits of each of a million entries, and 4 bytes for each block of 512, to two others.
    assert shown["algorithm.rule_0.sends.3_workers"] == "516 kB an exchange, at most 129 kB a step"
    assert shown["phase_0"] == "d_psgd: after 100 steps"
    assert shown["phase_0.rule_0.exchange"].startswith("gossip():")
    again = run(str(file), "--set", "phases=[]", "--workers", "5", "--parameters", "1000")[1]
    assert "phase" not in again
    assert "algorithm.rule_0.sends.5_workers" in again


def test_a_configurations_bytes_are_its_tasks_and_its_topology_can_be_another(tmp_path):
    file = tmp_path / "gossip.yml"
    file.write_text("algorithm: d_psgd\ntask: digits\nworkers: 4\ntopology: exponential\n")
    assert "for the 429,834 float32 parameters of digits on exponential()" in run(str(file))[1]
    picture = tmp_path / "ring.png"
    shown = run(str(file), "--topology", "ring", "--output", str(picture))[1]
    assert "of digits on ring()" in shown
    assert "workers  4" in shown.splitlines(), "the picture is of as many as the file says"
    assert picture.stat().st_size > 1000


def test_a_configuration_that_is_wrong_or_missing_is_refused(tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text("algorithm: {name: local_sgd, steps: 4, delay: 9}\n")
    code, out, err = run(str(file))
    assert (code, out) == (2, "")
    assert "wrong.yaml: line 1: " in err
    assert "delay 9 is longer than the 4 step(s)" in err
    file.write_text("algorithm: bsp\ntask: digit\n")
    code, _, err = run(str(file))
    assert code == 2
    assert "wrong.yaml: line 2: unknown task 'digit'" in err
    code, _, err = run(str(tmp_path / "none.yaml"))
    assert code == 2
    assert "No such file" in err


def test_more_workers_than_a_configuration_may_have_are_refused():
    code, out, err = run("bsp", "--workers", "100000000")
    assert (code, out) == (2, "")
    assert "4,096" in err


def test_a_quorum_that_the_configured_workers_cannot_make_up_is_refused(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("algorithm: bsp\nmembership: {elastic: true, quorum: 9}\n")
    assert run(str(path))[0] == run(str(path), "--workers", "9")[0] == 0  # torchrun may start enough
    code, out, err = run(str(path), "--workers", "2")
    assert (code, out) == (2, "")
    assert "membership.quorum is 9, but this run has 2 workers" in err


def test_what_an_algorithm_needs_in_memory(tmp_path):
    """Anchor and momentum, a message, and nothing more; over a ring two neighbours' messages."""
    assert facts("diloco", "--workers", "3")["memory.3_workers"] == (
        "8.0 kept, 0.0 in buffers, 4.0 more while messages are under way"
    )
    assert list(facts("diloco"))[-4].startswith("memory.2,_4,_8,_16_workers"), (
        "said once where it is the same"
    )
    picture = str(tmp_path / "ring.png")
    shown = facts("d_psgd", "--workers", "4", "--topology", "ring", "--output", picture)
    assert shown["memory.4_workers"] == "0.0 kept, 0.0 in buffers, 16.0 more while messages are under way"
    shown = facts("d_psgd", "--workers", "4", "--topology", "star", "--output", picture)
    assert shown["memory.4_workers"].endswith("; a mean of 12.0 in all on rank 1 to 20.0 in all on rank 0")


def test_what_codes_later_is_said_besides_what_codes_first():
    """Eight bytes an entry are 2 · 2/3 · 4,000 by 3 workers; then one bit, a scale and no entry to spare."""
    sends = facts("qadam", "--workers", "3", "--parameters", "999")["rule_0.sends.3_workers"]
    assert sends == (
        "5.33 kB an exchange, at most 5.33 kB a step in the first 100 steps, then "
        "184 B an exchange, at most 184 B a step"
    )


def test_an_algorithm_that_chooses_another():
    shown = facts("auto")
    assert shown["planner"].startswith("least_time(): The composition whose predicted time")


def test_what_depends_on_shapes_is_counted_for_a_matrix_and_said_so():
    shown = facts("powersgd", "--set", "matrix_rank=3", "--workers", "3", "--parameters", "6000")
    counted_for = "float32 parameters in one matrix of 75 x 80 (--task counts a model's own shapes)"
    assert counted_for in shown["rule_0.sends"]
    # Two factors of rank 3, by a ring of 3: 2 · 2/3 · (75 + 80) · 3 · 4 bytes.
    assert shown["rule_0.sends.3_workers"].startswith("2.48 kB an exchange")
    assert "matrix" not in facts("bsp")["rule_0.sends"]


def test_a_tasks_model_is_counted_by_its_own_shapes():
    """Three matrices of digits, 64 x 16, 16 x 8 and 8 x 10, and their biases as they are."""
    task = "{digits: {hidden: [16, 8]}}"
    shown = facts("powersgd", "--set", "matrix_rank=2", "--workers", "3", "--task", task)
    assert shown["rule_0.sends"].startswith(f"by each worker, for the 1,266 float32 parameters of {task} on")
    factors = 2 * (64 + 16 + 16 + 8 + 8 + 10) * 4
    biases = (16 + 8 + 10) * 4
    sent = 2 * 2 / 3 * (factors + biases)
    assert shown["rule_0.sends.3_workers"].startswith(f"{sent / 1e3:.2f} kB an exchange")


def test_a_fragment_is_counted_without_the_others():
    many = ("--set", "fragments=4", "--workers", "2")
    shown = facts("streaming_diloco", *many, "--parameters", "1000000")
    assert shown["rule_0.sends"].startswith("by each worker, for 250,000 float32 parameters on")
    assert shown["rule_3.sends.2_workers"] == "1 MB an exchange, at most 10 kB a step"
    task = "{digits: {hidden: [16, 8]}}"
    shown = facts("streaming_diloco", "--set", "fragments=2", "--workers", "2", "--task", task)
    numbers = [int(shown[f"rule_{one}.sends"].split()[5].replace(",", "")) for one in (0, 1)]
    assert sum(numbers) == 1266
    assert min(numbers) > 0
    shown = facts("streaming_diloco", "--set", "fragments=9", "--workers", "2", "--task", task)
    assert "cannot be cut into 9 fragments" in shown["rule_0.sends"]


def test_a_size_and_a_task_are_one_too_many():
    code, _, err = run("powersgd", "--task", "digits", "--parameters", "10")
    assert code == 2
    assert "leave one out" in err


def test_a_required_parameter_is_taken_from_the_example_and_said_so():
    shown = facts("post_local_sgd")
    assert shown["shown_with"].startswith("after_steps=100, as in the example; --set after_steps=")
    assert shown["rule_0.active"] == "from step 0 until step 100"
    shown = facts("post_local_sgd", "--set", "after_steps=5")
    assert "shown_with" not in shown
    assert shown["rule_1.active"] == "from step 5 on"


def test_a_primitive():
    shown = facts("cast", "--set", "dtype=float64")
    assert shown["role"] == "compressor"
    assert shown["facts.kinds"] == "dense: message kinds that it may yield."
    assert shown["parameters.dtype"].startswith("'float16', 'bfloat16', 'float32' or 'float64': req")
    assert "facts.period_steps" in facts("every")


@pytest.mark.parametrize(
    ("name", "heard"), [("parameters", "none"), ("client_deltas", "client, round given up")]
)
def test_what_a_payload_hears(name, heard):
    assert f"hears  {heard}" in run(name)[1]


def test_an_argument_that_may_be_left_open_says_null():
    assert facts("fedavg")["parameters.clients"].startswith(
        "a whole number, 1 or more, or null: default null"
    )


def test_a_name_of_both_shows_both():
    code, out, _ = run("slowmo", "--set", "steps=3")
    firsts = [line for line in out.splitlines() if line.startswith("slowmo  ")]
    assert (code, len(firsts)) == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["local_sdg"], "did you mean 'local_sgd'?\n"),
        (["local_sgd", "--set", "step=2"], "it takes: steps=16"),
        (["local_sgd", "--set", "steps=0"], "steps = 0 is not allowed"),
        (["every", "--set", "steps"], "write KEY=VALUE"),
    ],
)
def test_bad_input(arguments, says):
    code, out, err = run(*arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert says in err


def test_on_a_terminal_it_is_a_tree(monkeypatch, capsys):
    console = Console(force_terminal=True, width=30, color_system=None)
    monkeypatch.setattr(tree, "Console", lambda: console)
    tree.show(tree.Node("top", "first", (tree.Node("one fact", "in [0, 1) of a long line", term="yes"),)))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["top  first", "└── one fact  yes  in [0, 1)", "    of a long line"]


def test_a_topology_is_drawn(tmp_path):
    picture = tmp_path / "ring.png"
    shown = facts("--topology", "ring", "--workers", "6", "--output", str(picture))
    assert shown["topology"] == "ring()"
    assert shown["spectral_gap"] == "0.3333 an exchange"
    assert picture.stat().st_size > 5000
    code, _, err = run("--topology", "{random_regular: {degree: 3}}", "--workers", "3")
    assert (code, "below" in err) == (2, True)
    assert run("--topology", "rings")[0] == 2
    code, _, err = run("--topology", "ring", "--output", str(tmp_path / "picture"))
    assert (code, "name a file that ends in .png" in err) == (2, True)
    assert run()[0] == 2


HALVES = """
import torch
from relaxcomm import Task


def make(seed):
    trunk, head = torch.nn.Linear(100, 100, bias=False, dtype=torch.bfloat16), torch.nn.Linear(10, 100)
    model = torch.nn.Sequential(trunk, head) if {mixed} else trunk
    return Task(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(100)],
        loss=lambda model, batch: model(batch).sum(),
        evaluate=lambda model: 0.0,
        metric="loss",
        higher_is_better=False,
        epochs=1,
    )
"""


@pytest.mark.parametrize(
    ("mixed", "numbers", "kind", "sent"),
    [
        (False, "10,000 bfloat16", "bfloat16 parameter", "20 kB"),  # 2 · 1/2 of 2 bytes an entry
        (True, "10,000 bfloat16 and 1,100 float32", "parameter", "24.4 kB"),
    ],
)
def test_a_tasks_model_is_counted_in_its_own_types(tmp_path, monkeypatch, mixed, numbers, kind, sent):
    (tmp_path / f"halves_{mixed}.py").write_text(HALVES.format(mixed=mixed))
    monkeypatch.syspath_prepend(tmp_path)
    shown = facts("bsp", "--workers", "2", "--task", f"halves_{mixed}:make")
    assert shown["rule_0.sends"].startswith(f"by each worker, for the {numbers} parameters of ")
    assert shown["rule_0.sends.2_workers"] == f"{sent} an exchange, at most {sent} a step"
    assert shown["memory"].endswith(f"in bytes a {kind}")
    buffers = (10_000 * 2 + mixed * 1_100 * 4) / (10_000 + mixed * 1_100)
    assert shown["memory.2_workers"].startswith(f"0.0 kept, {buffers:.1f} in buffers")
