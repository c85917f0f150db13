"""Bad input gets one clear error that says what was got and what is allowed."""

from contextlib import nullcontext

import pytest

from relaxcomm import CompositionError, ConfigError, RelaxcommError, Rule, TopologyError
from relaxcomm.config import load, parse_yaml
from relaxcomm.config.keys import put
from relaxcomm.primitives import all_reduce, gradients

RULE = {"payload": "gradients", "exchange": "all_reduce"}


def compressed(compressor):
    return {"algorithm": {"rules": [{**RULE, "compressor": compressor}]}}


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({}, ConfigError, "algorithm is missing; write it, such as algorithm: bsp"),
        ({"algoritm": "bsp"}, ConfigError, "unknown key 'algoritm'; did you mean 'algorithm'"),
        (
            {"algorithm": "./mine.py"},
            ConfigError,
            "unknown algorithm './mine.py'; one of your own has its name from an entry point, in a package "
            "as relaxcomm new-algorithm makes it",
        ),
        ({"algorithm": "mine:bsp"}, ConfigError, "unknown algorithm 'mine:bsp'; one of your own has"),
        (
            {"algorithm": "slowmo(steps=8)"},
            ConfigError,
            "'slowmo(steps=8)' is not allowed; write {name: slowmo, parameter: value}; it takes: steps=",
        ),
        ({"algorithm": "bsp()"}, ConfigError, "'bsp()' is not allowed; write bsp"),
        (
            compressed("top_k(density=0.1)"),
            ConfigError,
            "'top_k(density=0.1)' is not allowed; write {top_k: {parameter: value}}; it takes: density, ",
        ),
        (
            {"algorithm": "bsp", "batch_size": 32},
            ConfigError,
            "unknown key 'batch_size'; it goes into data, such as data: {batch_size: 64}",
        ),
        (
            {"algorithm": "bsp", "every_steps": 5},
            ConfigError,
            "it goes into checkpoint, such as checkpoint: {path: checkpoints, every_steps: 1000}, or "
            "drift_guard, such as drift_guard: {every_steps: 100}",
        ),
        (
            {"algorithm": "bsp", "epochs": 3},
            ConfigError,
            "unknown key 'epochs'; it goes into task, such as task: {digits: {epochs: 5}}",
        ),
        (
            {"algorithm": "bsp", "checkpoint": {"every_steps": 5}},
            ConfigError,
            "checkpoint.path is missing; write it, such as checkpoint: {path: checkpoints, every_",
        ),
        (
            {"algorithm": "bsp", "phases": [{"algorithm": "local_sgd"}]},
            ConfigError,
            "phases.0.after_steps is missing; write it, such as phases: [{after_steps: 1000, algorithm: ",
        ),
        (
            {"algorithm": "bsp", "data": {"injection": 0.5}},
            ConfigError,
            "data.injection: 0.5 is not allowed; write its keys, such as injection: {alpha: 0.5, beta: 0.5}",
        ),
        (
            {"name": "local_sgd", "steps": 8},
            ConfigError,
            "write {'algorithm': {'name': 'local_sgd', 'steps': 8}}",
        ),
        (
            {"local_sgd": {"steps": 8}},
            ConfigError,
            "write {'algorithm': {'name': 'local_sgd', 'steps': 8}}",
        ),
        ({"bsp": None}, ConfigError, "write {'algorithm': {'name': 'bsp'}}"),
        ({"rules": [RULE]}, ConfigError, "is an algorithm, which is one of a configuration's keys; write"),
        ({"algorithm": "bps"}, ConfigError, "did you mean 'bsp'"),
        ({"algorithm": "bsp", "worker": 2}, ConfigError, "unknown key 'worker'; did you mean 'workers'"),
        (
            {"algorithm": "local_sgd", "steps": 4},
            ConfigError,
            "'steps'; parameters of an algorithm go into it: algorithm: {name: local_sgd, steps: 8}",
        ),
        ({"algorithm": "bsp", "steps": 4}, ConfigError, "unknown key 'steps'; allowed: algorithm, "),
        ({"algorithm": "bsp", "workers": "2"}, ConfigError, "workers: '2' is not allowed"),
        (
            {"algorithm": "bsp", "workers": 0},
            ConfigError,
            "workers: 0 is not allowed: write a whole number, 1 to 4,096",
        ),
        (
            {"algorithm": "bsp", "timeout_seconds": "0,5"},
            ConfigError,
            "write a number above 0, and 31,536,000 at most, with a point: 0.5",
        ),
        (
            {"algorithm": "bsp", "data": {"injection": {"alpha": 0.5}}},
            ConfigError,
            "configuration: data.injection: Injection needs 'beta'",
        ),
        (
            {"algorithm": "bsp", "data": {"partition": "iidd"}},
            ConfigError,
            "data.partition: unknown partition",
        ),
        (
            compressed({"top_k": {"denisty": 0.1}}),
            ConfigError,
            "top_k has no parameter 'denisty'; did you mean",
        ),
        (
            compressed({"error_feedback": {"compresor": "sign"}}),
            ConfigError,
            "error_feedback has no parameter 'compresor'; did you mean 'compressor'?",
        ),
        (
            compressed({"top_k": {"densities": 0.1, "scop": "model"}}),
            ConfigError,
            "top_k has no parameter 'densities'; did you mean 'density'?",
        ),
        (compressed({"top_k": {"picewise": {}}}), ConfigError, "unknown schedule 'picewise'; did you mean"),
        (
            compressed({"error_feedback": {"tpo_k": {}}}),
            ConfigError,
            "unknown compressor 'tpo_k'; did you mean 'top_k'?",
        ),
        (
            compressed({"error_feedback": {"all_reduce": {}}}),
            ConfigError,
            "'all_reduce' is an exchange, not a compressor",
        ),
        ({"algorithm": "bsp", "workers": True}, ConfigError, "workers: True is not allowed"),
        ({"algorithm": "bsp", "data": {"batchsize": 2}}, ConfigError, "did you mean 'batch_size'"),
        (
            {"algorithm": "bsp", "checkpoint": "saved"},
            ConfigError,
            "'saved' is not allowed; write its keys, such as checkpoint: {path: checkpoints, every_steps:",
        ),
        ({"algorithm": "bsp", "metrics": True}, ConfigError, "write its keys, such as metrics: {port: 9400}"),
        ({"algorithm": "bsp", "phases": ["local_sgd"]}, ConfigError, "such as phases: [{after_steps: 1000"),
        (
            {"algorithm": "bsp", "phases": [{"after_step": 5, "algorithm": "local_sgd"}]},
            ConfigError,
            "unknown key 'phases.0.after_step'; did you mean 'after_steps'? allowed: after_steps, algorithm, "
            "residuals",
        ),
        (
            {"algorithm": "bsp", "data": {"x": 1, "y": 2}, "sed": 3},
            ConfigError,
            "key 'data.x'; allowed: batch_size, injection, micro_batch_size, partition\n"
            "configuration: unknown key 'data.y'\n"
            "configuration: unknown key 'sed'; did you mean 'seed'? allowed: algorithm, ",
        ),
        ({"algorithm": "BSP"}, ConfigError, "did you mean 'bsp'"),
        (
            {"algorithm": {"name": "local_sgd", "step": 2}},
            ConfigError,
            "'step'; did you mean 'steps'? it takes: steps=16",
        ),
        (
            {"algorithm": {"rules": [{**RULE, "compressor": {"top_k": {"density": "1%"}}}]}},
            ConfigError,
            "density = '1%' is not allowed: write a number above 0, and 1 at most, or a schedule of it",
        ),
        (
            {"algorithm": {"name": "topk_sgd", "density": [0.1, 0.01]}},
            ConfigError,
            "density = [0.1, 0.01] is not allowed: write a number above 0, and 1 at most, or a schedule of "
            "it: {piecewise: {values: […], steps: […]}}",
        ),
        (
            {"algorithm": {"rules": [{**RULE, "compressor": {"quantize": {"bits": "8 bits"}}}]}},
            ConfigError,
            "bits = '8 bits' is not allowed: write a whole number, 1 to 8, or a schedule of it",
        ),
        ({"algorithm": {"name": "local_sgd", "steps": 0}}, ConfigError, "steps = 0 is not allowed"),
        (
            {"algorithm": "fedavg", "phases": [{"after_steps": 5, "algorithm": "local_sgd"}]},
            ConfigError,
            "phases with fedavg, which chooses the batches",
        ),
        (
            {"algorithm": "bsp", "phases": [{"after_steps": 5, "algorithm": "fedavg"}]},
            ConfigError,
            "phases with fedavg, which chooses the batches",
        ),
        (
            {"algorithm": "bsp", "task": ["digits"]},
            ConfigError,
            "task: ['digits'] is not allowed; write a bundled",
        ),
        ({"algorithm": "post_local_sgd"}, ConfigError, "needs 'after_steps'"),
        ({"algorithm": {"rules": []}}, CompositionError, "at least one rule"),
        ({"algorithm": {"rules": [{"payload": "gradients"}]}}, ConfigError, "needs 'exchange'"),
        (
            {"algorithm": {"rules": [{**RULE, "exchange": "identity"}]}},
            ConfigError,
            "is a compressor, not an exchange",
        ),
        (
            {"algorithm": {"rules": [{**RULE, "payload": "all_reduce"}]}},
            ConfigError,
            "is an exchange, not a payload",
        ),
        ({"algorithm": {"rules": [{**RULE, "delay": -1}]}}, ConfigError, "delay = -1 is not allowed"),
        ({"algorithm": {"rules": [{**RULE, "late": 1}]}}, ConfigError, "unknown key 'late'"),
        (
            {"algorithm": {"rules": [{**RULE, "outer": {"sgd": {"lr": 1}}}]}},
            CompositionError,
            "use the payload deltas",
        ),
        (
            {"algorithm": {"rules": [{**RULE, "payload": "parameters", "delay": 2}]}},
            CompositionError,
            "longer than the 1 step",
        ),
        ({"algorithm": {"rules": [{**RULE, "delay": 1}, RULE]}}, CompositionError, "disjoint active ranges"),
        ({"algorithm": {"rules": [{**RULE, "active": [5, 5]}]}}, CompositionError, "is empty"),
        ({"algorithm": {"rules": [{**RULE, "select": []}]}}, CompositionError, "selects nothing"),
        (
            {"algorithm": "bsp", "membership": {"quorum": 2}},
            ConfigError,
            "membership.quorum is of elastic runs; set elastic: true",
        ),
        (
            {"algorithm": {"name": "topk_sgd", "density": {"piecewise": {"values": [0.1, 2], "steps": [5]}}}},
            ConfigError,
            "a density is a fraction in (0, 1]; got",
        ),
        (
            {"algorithm": {"name": "topk_sgd", "density": {"piecewise": {"values": [0.1], "steps": [5]}}}},
            ConfigError,
            "piecewise needs ascending steps and one value more",
        ),
        (
            {"algorithm": {"name": "qadam", "bits": True}},
            ConfigError,
            "algorithm qadam: bits = True is not allowed: write 1 or 8",
        ),
    ],
)
def test_bad_input_is_refused(values, error, says):
    with pytest.raises(error) as caught:
        load(values)
    assert says in str(caught.value)


def test_an_override_goes_into_no_number():
    with pytest.raises(ConfigError, match=r"'seed.first': 'seed' is 1 and holds no keys"):
        put({"algorithm": "bsp", "seed": 1}, "seed.first", 2)


@pytest.mark.parametrize(
    "values",
    [{"algoritm": "bsp"}, {"algorithm": "bsp", "phases": [{"after_step": 5, "algorithm": "local_sgd"}]}],
    ids=["algorithm", "after_steps"],
)
def test_what_is_mistyped_is_not_missing_as_well(values):
    with pytest.raises(ConfigError, match="did you mean") as caught:
        load(values)
    assert "is missing" not in str(caught.value)


@pytest.mark.parametrize("source", [None, ["bsp"], Rule(payload=gradients(), exchange=all_reduce())])
def test_what_is_no_configuration_is_told_what_is_one(source):
    says = r"such as {'algorithm': 'bsp'}, or an Algorithm such as Algorithm\(\(rule,\), name='mine'\); got "
    with pytest.raises(ConfigError, match=says):
        load(source)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1e-3", 1e-3), ("1.5e3", 1500.0), ("-2E-2", -0.02), (".5e1", 5.0), ("6.e+2", 600.0), ("0.25", 0.25)],
)
def test_numbers_with_an_exponent_are_numbers(tmp_path, text, expected):
    assert parse_yaml(text) == expected
    path = tmp_path / "config.yaml"
    path.write_text(f"algorithm: {{name: diloco, lr: {abs(expected)}}}\ntimeout_seconds: 6e1\n")
    assert load(path).timeout_seconds == 60.0


def test_text_stays_text():
    texts = ["e3", "1e", "v1e3", "1e3x", "1-e3"]
    assert parse_yaml(f"[{', '.join(texts)}, '1e3']") == [*texts, "1e3"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("algorithm: bsp\nseed: 1\nalgorithm: diloco\n", "'algorithm' stands in line 1 and in line 3"),
        ("algorithm: bsp\ndata:\n  batch_size: 2\n  batch_size: 3\n", "'batch_size' stands in line 3 and in"),
        (
            "algorithm: {name: diloco, steps: 2, steps: 3}\n",
            "'steps' stands in line 1 and in line 1; keep one",
        ),
    ],
)
def test_a_key_that_comes_twice_is_refused(tmp_path, text, says):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml: the key") as caught:
        load(path)
    assert says in str(caught.value)


def test_merged_keys_are_no_doubles():
    assert parse_yaml("base: &b {a: 1}\nmore: {<<: *b, a: 2}")["more"] == {"a": 2}


def test_yaml_and_python_spell_the_same_algorithm(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "algorithm: {rules: [{trigger: {every: {steps: 500}}, payload: deltas, exchange: all_reduce,"
        " outer: {nesterov: {lr: 0.7, momentum: 0.9}}}]}"
    )
    assert load(path).algorithm.rules == load({"algorithm": "diloco"}).algorithm.rules


@pytest.mark.parametrize("task", ["digits", {"digits": None}, {"digits": {"dropout": 0.1, "epochs": 9}}])
def test_an_override_reaches_into_a_task(task):
    loaded = load({"algorithm": "bsp", "task": task}, {"task.digits.epochs": 3}).task
    assert loaded["digits"]["epochs"] == 3
    assert len(loaded) == 1


@pytest.mark.parametrize(
    ("algorithm", "topology", "quorum", "says"),
    [
        ("d_psgd", "hypercube", 1, r"3 of the 4 workers could not go on: hypercube.*or leave elastic out"),
        ("hierarchical_local_sgd", {"hierarchical": {"sizes": [2, 2]}}, 3, "3 of the 4 workers.*one number"),
        ("d_psgd", {"random_regular": {"degree": 2}}, 1, "2 of the 4 workers.*set membership.quorum to 3"),
        ("d_psgd", {"random_regular": {"degree": 2}}, 3, None),
        ("d_psgd", "hypercube", 4, None),
        ("d_psgd", "ring", 1, None),
        ("hierarchical_local_sgd", {"hierarchical": {"sizes": 2}}, 1, None),
        ("bsp", "complete", 1, None),
    ],
)
def test_an_elastic_run_over_a_graph_that_fewer_workers_cannot_have_is_refused(
    algorithm, topology, quorum, says
):
    values = {"algorithm": algorithm, "topology": topology}
    load(values).check_losses(4)
    elastic = load({**values, "membership": {"elastic": True, "quorum": quorum}})
    elastic.check_world_size(4)
    with nullcontext() if says is None else pytest.raises(TopologyError, match=says):
        elastic.check_losses(4)


def test_overrides_win_and_reach_into_a_bare_name():
    config = load({"algorithm": "local_sgd"}, {"algorithm.steps": 3, "data.batch_size": 7})
    assert config.algorithm.rules[0].trigger.facts.period_steps == 3
    assert config.data.batch_size == 7


def test_an_override_reaches_into_a_list_and_leaves_the_given_one_as_it_was():
    rule = {"trigger": {"every": {"steps": 8}}, "payload": "parameters", "exchange": "all_reduce"}
    given = {"algorithm": {"rules": [dict(rule, select="1/2"), dict(rule, select="2/2")]}}
    rules = load(
        given, {"algorithm.rules.1.trigger.every.steps": 3, "algorithm.rules.0.delay": 2}
    ).algorithm.rules
    assert [(one.trigger.facts.period_steps, one.delay) for one in rules] == [(8, 2), (3, 0)]
    assert given["algorithm"]["rules"] == [dict(rule, select="1/2"), dict(rule, select="2/2")]
    for place in ("2", "-1", "first", "9" * 5_000):  # Python refuses to read more than 4,300 digits
        with pytest.raises(ConfigError, match=r"' is no place in a list of 2; they are counted from 0"):
            load(given, {f"algorithm.rules.{place}.delay": 1})
    with pytest.raises(ConfigError, match="'0' is no place in a list: there is none"):
        load({"algorithm": "bsp"}, {"algorithm.rules.0.delay": 1})


def test_no_line_is_told_of_what_an_override_has_put_into_a_list(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "algorithm:\n  rules:\n    - payload: gradients\n      exchange: all_reduce\n      delay: 1\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(path, {"algorithm.rules.0.payload": "gradient"})
    assert f"{path}: unknown payload 'gradient'" in str(caught.value)


def test_a_path_may_begin_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "pair.edgelist").write_text("0 1\n")
    found = load(
        {
            "algorithm": "d_psgd",
            "output": "~/runs",
            "checkpoint": {"path": "~/saved", "every_steps": 1},
            "membership": {"elastic": True, "secret": {"file": "~/secret"}},
            "topology": {"file": {"path": "~/pair.edgelist"}},
        }
    )
    assert found.output == f"{tmp_path}/runs"
    assert found.checkpoint.path == f"{tmp_path}/saved"
    assert found.membership.secret.file == f"{tmp_path}/secret"
    assert set(found.topology.graph(2).edges) == {(0, 1)}


@pytest.mark.parametrize("key", ["output", "checkpoint.path", "topology.file.path"])
def test_of_whom_no_home_folder_is_known_is_refused(key):
    values = {"algorithm": "d_psgd", "checkpoint": {"path": "saved", "every_steps": 1}}
    says = r"~nobody_here/x[.a-z]*: no home folder is known of ~nobody_here; write the path in full"
    with pytest.raises(RelaxcommError, match=says):
        load(values, {key: "~nobody_here/x" + ".edgelist" * key.startswith("topology")}).topology.graph(2)


RULES = "algorithm:\n  rules:\n  - payload: gradients\n    exchange: all_gather\n    trigger:"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("seed: 1\nalgorithm: locl_sgd\n", 2, "unknown algorithm 'locl_sgd'"),
        ("algorithm:\n  name: local_sgd\n  steps: 0\n", 3, "steps = 0"),
        (
            "algorithm:\n  name: local_sgd\n  steps: 0\n  delay: -1\n",
            3,
            "line 4: algorithm local_sgd: delay = -1",
        ),
        (f"{RULES}\n      every:\n        steps: 0\n", 7, "steps = 0"),
        (f"{RULES}\n      evry:\n        steps: 1\n", 6, "unknown trigger 'evry'"),
        (f"{RULES} every_step\n    dely: 2\n", 6, "unknown key 'dely' in a rule"),
        (f"{RULES} every_step\n    compressor:\n      chain:\n      - sign\n      - sgn\n", 9, "'sgn'"),
        (f"{RULES} every_step\n    compressor:\n      error_feedback:\n        sgn: {{}}\n", 8, "'sgn'"),
        ("algorithm: bsp\ndata:\n  batch_size: 8\n  micro_batch_size: 0\n", 4, "data.micro_batch_size: 0"),
        ("algorithm: bsp\n\nsed: 1\n", 3, "unknown key 'sed'"),
        ("algorithm: bsp\ncheckpoint: {path: here}\n", 2, "give just one of them"),
        ("algorithm: bsp\nphases:\n- after_steps: 5\n  algorithm: bps\n", 4, "unknown algorithm 'bps'"),
        ("algorithm: selsync\n# of the sites\ntopology: ring\n", 3, "cannot use topology ring()"),
        ("base: &few {batch_size: 0}\nalgorithm: bsp\ndata:\n  <<: *few\n", 1, "unknown key 'base'"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(tmp_path, text, line, says):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises((ConfigError, CompositionError), match=rf"job\.yaml: line {line}: ") as caught:
        load(path)
    assert says in str(caught.value)


def test_what_was_given_over_a_file_has_no_line_of_it(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("algorithm:\n  name: local_sgd\nseed: 1\n")
    for key in ("algorithm.steps", "seed"):
        with pytest.raises(ConfigError) as caught:
            load(path, {key: -1})
        assert "line" not in str(caught.value)
