"""Models sharded by `fully_shard`: 2 replicas of 2 shards train as 2 workers with whole replicas do."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import TensorDataset

import relaxcomm
from relaxcomm import CompositionError, ConfigError, RelaxcommError, UsageError, checkpoint
from tests.engine import sharded
from tests.engine.sharded import RANKS, REPLICAS, SHARDS, mesh, shard
from tests.golden.cases import CASES
from tests.models import CASES as MODELS, take_step
from tests.ranks import run_ranks
from tests.step.test_parameter_exchange import alone as by_norms

pytestmark = pytest.mark.ranks


@pytest.fixture(autouse=True)
def small_tensors_are_large() -> None:
    """Not here: what `dcd_psgd` draws depends on sizes, which the ranks' processes leave as they are."""


WHOLE = [
    *("bsp", "local_sgd", "local_sgd late", "post_local_sgd", "hierarchical_local_sgd", "diloco", "slowmo"),
    *("selsync", "selsync all", "selsync gradients", "selsync late", "selsync late votes", "delayed_sgd"),
    *("des_loc", "easgd", "noloco", "local_sgd fragments", "local_sgd moments"),
    *("streaming_diloco", "decoupled_diloco", "d_psgd", "one_peer_exponential", "sgp", "ssp"),
]
"""What combines entry by entry, and what looks at norms of the whole: equal to whole replicas."""
CODED = [
    *(
        "bytegrad",
        "choco_sgd",
        "choco_sgd top_k",
        "dcd_psgd",
        "decoupled_diloco parts",
        "demo",
        "dgc",
        "ef21",
    ),
    *(
        "ef_signsgd",
        "gaussiank_sgd",
        "gaussiank_sgd published",
        "gravac",
        "local_sgd coded",
        "qadam",
        "signsgd",
    ),
    *("low_precision_decentralized", "sparseloco", "topk_sgd", "powersgd", "qsgd", "randomk_sgd", "terngrad"),
]
"""What codes tensors: a shard is a tensor of its own."""
LATE = ["ad_psgd", "async_model_average", "async_model_average coded", "heloco", "ssp stale", "ssp coded"]
"""What depends on time."""
OWN_MOMENTUM = {"dgc", "qadam"}


def config_of(name: str) -> dict[str, Any]:
    topology = {"hierarchical": {"sizes": [1, 1]}} if name == "hierarchical_local_sgd" else "complete"
    # Each tensor in a bucket of its own, so that parts of tensors are not put together otherwise.
    return {"algorithm": CASES[name], "topology": topology, "bucket_bytes": 8}


def optimizer_of(name: str) -> str:
    return "plain" if name in OWN_MOMENTUM else "adamw" if name == "des_loc" else "momentum"


def train_all(rank: int, names: list[str], case: str) -> dict[str, Any]:
    return {
        name: sharded.train(config_of(name), case=case, optimizer=optimizer_of(name))[0] for name in names
    }


def all_apart(found: list[dict[str, Any]], reference: Any, names: list[str], case: str) -> dict[str, float]:
    """The largest difference of a replica from a worker of the reference, by name; shards must agree."""
    apart = {}
    for name in names:
        replicas = [[rank[name] for rank in found[r * SHARDS :][:SHARDS]] for r in range(REPLICAS)]
        for first, *others in replicas:
            assert all(np.array_equal(first, other) for other in others), name
        expected = reference(config_of(name), case=case, optimizer=optimizer_of(name))
        apart[name] = max(np.abs(np.array(replicas[r][0]) - expected[r]).max() for r in range(REPLICAS))
    return apart


def usual_and_rest(names: list[str], usual: set[str]) -> pytest.MarkDecorator:
    """A test of one of each kind of exchange, and a slow one of the rest."""
    return pytest.mark.parametrize(
        "names",
        [
            pytest.param([name for name in names if name in usual], id="some"),
            pytest.param([name for name in names if name not in usual], id="rest", marks=pytest.mark.slow),
        ],
    )


@usual_and_rest(WHOLE, {"diloco", "selsync", "selsync late", "delayed_sgd", "d_psgd", "ssp"})
def test_algorithms_that_combine_entries_train_as_with_whole_replicas(names):
    found = run_ranks(train_all, RANKS, names, "toy")
    apart = all_apart(found, sharded.train_whole, names, "toy")
    assert {name: far for name, far in apart.items() if far > 1e-12} == {}


@usual_and_rest(CODED, {"topk_sgd", "powersgd", "signsgd", "choco_sgd", "randomk_sgd"})
def test_algorithms_that_code_tensors_code_each_shard_as_a_tensor(names):
    found = run_ranks(train_all, RANKS, names, "matrices")
    apart = all_apart(found, sharded.train_cut, names, "matrices")
    assert {name: far for name, far in apart.items() if far > 1e-12} == {}


@pytest.mark.slow
def test_algorithms_that_depend_on_time_keep_the_shards_of_a_replica_together():
    found = run_ranks(train_all, RANKS, LATE, "toy")
    for name in LATE:
        ends = [rank[name][-1] for rank in found]
        assert all(np.array_equal(ends[0], one) for one in ends), name
        assert np.isfinite(ends[0]).all()


def thin(rank: int) -> Any:
    names = ["bsp", "local_sgd", "topk_sgd", "ef_signsgd", "ssp", "d_psgd"]
    return {
        name: sharded.train({**config_of(name), "bucket_bytes": size}, case="thin")[0]
        for name in names
        for size in (8, 1 << 20)
    }


@pytest.mark.slow
def test_a_shard_may_be_empty():
    found = run_ranks(thin, RANKS)
    for name in ("bsp", "local_sgd", "d_psgd", "ssp"):
        expected = sharded.train_whole(config_of(name), case="thin")
        for rank in range(RANKS):
            np.testing.assert_allclose(found[rank][name], expected[rank // SHARDS], atol=1e-12)
    assert all(np.isfinite(rank[name]).all() for rank in found for name in rank)


def native(rank: int) -> list[np.ndarray]:
    """Torch's own hybrid sharding, bsp on the same and on its dimension of shards, and local SGD."""
    case, ends = MODELS["toy"], []
    for over, algorithm in ((mesh(), None), (mesh(), "bsp"), (mesh()["shard"], "bsp"), (mesh(), "local_sgd")):
        model = shard(case.model(), over)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        engine = None if algorithm is None else relaxcomm.attach(model, optimizer, algorithm)
        for step in range(5):
            case.local_loss(model, step, rank).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        ends.append(sharded.whole(model))
        if engine is not None:
            engine.close()
    # It averages replicas again, as before attach.
    case.local_loss(model, 9, rank).backward()
    return [*ends, torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()]).numpy()]


def test_bsp_trains_as_torchs_own_hybrid_sharding_with_clipping():
    found = run_ranks(native, RANKS)
    for theirs, hybrid, ours, _, _ in found:
        np.testing.assert_allclose(hybrid, theirs, atol=1e-12)
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    local, after = [rank[3] for rank in found], [rank[4] for rank in found]
    assert not np.allclose(local[0], local[2])  # a replica's own, until they are averaged
    np.testing.assert_allclose(after[0], after[2])


def weighted(rank: int) -> Any:
    return sharded.train({"algorithm": by_norms(delay=1), "bucket_bytes": 8})[0]


def test_a_payload_measures_all_shards_of_its_replica():
    expected = sharded.train_whole({"algorithm": by_norms(delay=1)})
    for rank, found in enumerate(run_ranks(weighted, RANKS)):
        np.testing.assert_allclose(found, expected[rank // SHARDS], atol=1e-12)


def federated(rank: int) -> Any:
    model = shard(MODELS["toy"].model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
    draw = torch.Generator().manual_seed(3)
    data = TensorDataset(*(torch.randn(48, n, generator=draw, dtype=torch.float64) for n in (6, 4)))
    config = {"algorithm": {"name": "fedavg", "clients": 4, "fraction": 0.5}, "timeout_seconds": 60}
    with relaxcomm.attach(model, optimizer, config) as engine:
        for _ in range(3):
            for x, y in engine.loader(data, batch_size=3):
                take_step(nn.functional.mse_loss(model(x), y), optimizer)
    return sharded.whole(model)


def federated_whole() -> Any:
    def worker(group: relaxcomm.InProcessGroup) -> Any:
        model = MODELS["toy"].model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
        draw = torch.Generator().manual_seed(3)
        data = TensorDataset(*(torch.randn(48, n, generator=draw, dtype=torch.float64) for n in (6, 4)))
        config = {"algorithm": {"name": "fedavg", "clients": 4, "fraction": 0.5}}
        with relaxcomm.attach(model, optimizer, config, process_group=group) as engine:
            for _ in range(3):
                for x, y in engine.loader(data, batch_size=3 * SHARDS):
                    take_step(nn.functional.mse_loss(model(x), y), optimizer)
        return sharded.flat(list(model.parameters()))

    return relaxcomm.simulate(worker, REPLICAS)[0]


def test_a_replicas_ranks_divide_the_batches_of_its_clients():
    expected = federated_whole()
    for end in run_ranks(federated, RANKS):
        np.testing.assert_allclose(end, expected, atol=1e-12)


def growing(rank: int) -> Any:
    model = shard(MODELS["toy"].model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(3)
    data = TensorDataset(*(torch.randn(96, n, generator=draw, dtype=torch.float64) for n in (6, 4)))
    seen, sizes = [], []
    config = {"algorithm": {"name": "adaptive_local_sgd", "steps": 2, "tolerance": 0.2, "max_batch_size": 16}}
    with relaxcomm.attach(model, optimizer, config) as engine:
        for x, y in engine.loader(data, batch_size=2):
            seen += x[:, 0].tolist()
            sizes.append(len(x))
            take_step(nn.functional.mse_loss(model(x), y), optimizer)
    return seen, sizes


def test_all_processes_read_apart_and_batches_grow_alike():
    found = run_ranks(growing, RANKS)
    assert len({tuple(sizes) for _, sizes in found}) == 1
    assert max(found[0][1]) > 2
    seen = [sample for samples, _ in found for sample in samples]
    assert len(set(seen)) == len(seen)


def accumulated(rank: int, algorithm: str) -> Any:
    """In one piece; in two under no_sync; and in two that are not reduced inside a replica, either."""
    case, found = MODELS["toy"], []
    for pieces, reduces in ((1, True), (2, True), (2, False)):
        model = shard(case.model())
        optimizer = sharded.momentum(list(model.parameters()))
        with relaxcomm.attach(model, optimizer, algorithm) as engine:
            for step in range(4):
                for piece in range(pieces):
                    model.set_requires_gradient_sync(reduces or piece == pieces - 1)
                    inputs, targets = (one.chunk(pieces)[piece] for one in case.data(step, rank))
                    loss = case.loss(model(inputs), targets) / pieces
                    if piece < pieces - 1:
                        with engine.no_sync():
                            loss.backward()
                    else:
                        loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            found.append((sharded.whole(model), engine.statistics["bytes_sent"]))
    return found


@pytest.mark.parametrize("algorithm", ["bsp", "topk_sgd", "local_sgd"])
def test_accumulated_gradients_are_exchanged_once(algorithm):
    for (once, sent), *others in run_ranks(accumulated, RANKS, algorithm):
        for twice, sent_twice in others:
            np.testing.assert_allclose(twice, once, atol=1e-12)
            assert sent_twice == sent


class Poison(torch.autograd.Function):
    """Adds nothing, and its gradient is NaN."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        ctx.shape = values.shape
        return values.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.new_full(ctx.shape, torch.nan)


def poisoned(rank: int, algorithm: Any, scaled: bool) -> Any:
    """NaN in one entry of one replica's gradient, which only one of its ranks holds."""
    case = MODELS["toy"]
    model = shard(case.model())
    optimizer = sharded.momentum(list(model.parameters()))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if scaled else None
    before, bad = sharded.whole(model), [False]

    def forward(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output + Poison.apply(module.bias[0]) if bad[0] else output

    model[4].register_forward_hook(forward, prepend=True)  # while its parameters are whole
    try:
        config = {"algorithm": algorithm, "timeout_seconds": 30}
        with relaxcomm.attach(model, optimizer, config, scaler=scaler) as engine:
            for step in range(3):
                bad[0] = step == 1 and rank == 2
                loss = case.local_loss(model, step, rank)
                (loss if scaler is None else scaler.scale(loss)).backward()
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
                optimizer.zero_grad()
            steps = engine.statistics["steps"]
    except RelaxcommError as error:
        return type(error).__name__, str(error)
    after = sharded.whole(model)
    return "trained", bool(np.isfinite(after).all()) and not np.array_equal(before, after), steps


@pytest.mark.parametrize("algorithm", ["topk_sgd", {"name": "local_sgd", "steps": 2}, "selsync"])
def test_nan_in_one_shard_is_an_error_on_all_ranks(algorithm):
    found = run_ranks(poisoned, RANKS, algorithm, False)
    assert {kind for kind, *_ in found} == {"NonFiniteError"}
    assert all("NaN or infinity in" in text and "on rank 2" in text for _, text in found)


def test_nan_ends_a_whole_replica_where_ranks_ask_a_server():
    found = run_ranks(poisoned, RANKS, "ssp", False)
    assert [kind for kind, *_ in found[2:]] == ["NonFiniteError"] * SHARDS
    assert all("another shard" in text or "bias" in text for _, text in found[2:])
    assert all("NaN or infinity" in text for _, text in found[:2])  # why the other one has failed


def test_a_grad_scaler_skips_the_step_on_all_ranks():
    for algorithm in ("bsp", "topk_sgd", "local_sgd"):
        found = run_ranks(poisoned, RANKS, algorithm, True)
        assert found == [("trained", True, 3)] * RANKS, algorithm


RESUMED = ["topk_sgd", "diloco", "streaming_diloco", {"name": "ssp", "staleness": 0}]
"""They keep residuals, parameters and momenta, what is on its way, and a server's values."""


def resumed(rank: int, folder: str) -> Any:
    case, found = MODELS["toy"], []
    for number, algorithm in enumerate(RESUMED):
        ends, path = [], Path(folder) / str(number)
        for first, last in ((0, 9), (0, 6), (6, 9)):
            model = shard(case.model(seed=first))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
            with relaxcomm.attach(model, optimizer, {"algorithm": algorithm}) as engine:
                if first:
                    assert checkpoint.load(engine, path) is not None
                    assert engine.statistics["steps"] == first
                for step in range(first, last):
                    take_step(case.local_loss(model, step, rank), optimizer)
                if last == 6:
                    checkpoint.save(engine, path)
                ends.append(sharded.whole(model))
        found.append((ends[0], ends[2]))
    return found


def other_mesh(rank: int, folder: str) -> Any:
    """Saved by 2 replicas of 2 shards, loaded by 4 whole ones."""
    model = MODELS["toy"].model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with relaxcomm.attach(model, optimizer, "topk_sgd") as engine:
        try:
            checkpoint.load(engine, Path(folder) / "0")
        except ConfigError as error:
            return str(error)
    return "loaded"


def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path):
    for found in run_ranks(resumed, RANKS, str(tmp_path)):
        for algorithm, (through, after) in zip(RESUMED, found, strict=True):
            # What asks a server is added up in the order in which it comes.
            np.testing.assert_allclose(after, through, rtol=0, atol=1e-12, err_msg=str(algorithm))
    assert len(list((tmp_path / "0").iterdir())) == 1  # one for all shards: whole, or not there
    refused = run_ranks(other_mesh, RANKS, str(tmp_path))
    assert all("another model" in text for text in refused), refused


def evaluated(rank: int) -> Any:
    """The mean model is seen by forward, also where modules have kept their whole parameters."""
    case = MODELS["toy"]
    model = shard(case.model(seed=rank // SHARDS), reshard_after_forward=False)
    optimizer = sharded.momentum(list(model.parameters()))
    inputs = torch.ones(2, 6, dtype=torch.float64)
    with relaxcomm.attach(model, optimizer, {"algorithm": {"name": "local_sgd", "steps": 50}}) as engine:
        for step in range(3):
            take_step(case.local_loss(model, step, rank), optimizer)
        with torch.no_grad():
            own = model(inputs)
            with engine.averaged():
                mean = model(inputs)
            back = model(inputs)
    return own.numpy(), mean.numpy(), back.numpy()


def test_evaluation_sees_the_mean_model_and_training_goes_on_from_its_own():
    found = run_ranks(evaluated, RANKS)
    own, mean, back = zip(*found, strict=True)
    assert not np.array_equal(own[0], own[2])
    for rank in range(RANKS):
        np.testing.assert_allclose(mean[rank], mean[0])
        np.testing.assert_array_equal(back[rank], own[rank])
        assert not np.allclose(mean[rank], own[rank])


def normalised(rank: int, algorithm: Any) -> list[np.ndarray]:
    """A rank's running means after a step of its own, in `averaged()` and at the end."""
    model = shard(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)).double())
    optimizer = sharded.momentum(list(model.parameters()))
    found = []
    with relaxcomm.attach(model, optimizer, {"algorithm": algorithm, "timeout_seconds": 60}) as engine:
        own = model[1].running_mean
        MODELS["toy"].local_loss(model, 0, rank).backward()
        found.append(own.numpy().copy())
        optimizer.step()
        found.append(own.numpy().copy())
        with engine.averaged():
            found.append(own.numpy().copy())
        found.append(own.numpy().copy())
    return [*found, own.numpy().copy()]


@pytest.mark.parametrize("steps", [1, 50])
def test_batch_norm_has_the_statistics_of_all_ranks(steps):
    found = run_ranks(normalised, RANKS, {"name": "local_sgd", "steps": steps})
    own = np.stack([rank[0] for rank in found])
    assert not np.allclose(own[0], own[1])
    for rank, (_, stepped, averaged, back, end) in enumerate(found):
        np.testing.assert_allclose(stepped, own.mean(0) if steps == 1 else own[rank], atol=1e-12)
        np.testing.assert_allclose(averaged, own.mean(0), atol=1e-12)
        np.testing.assert_array_equal(back, stepped)
        np.testing.assert_allclose(end, own.mean(0), atol=1e-12)


def many_ways(rank: int) -> dict[str, Any]:
    """Mixed precision, a frozen layer, a compiled model, a switch, a choice and uneven data."""
    case, found = MODELS["mlp"], {}
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, algorithm in {
        "half": "bsp",
        "frozen": "topk_sgd",
        "frozen since": {"name": "diloco", "steps": 2},
        "compiled": "local_sgd",
        "auto": "auto",
    }.items():
        model = case.model()
        if name == "frozen":
            model[2].requires_grad_(False)
        model = shard(model, **({"mp_policy": half} if name == "half" else {}))
        if name == "compiled":
            model.compile(backend="eager")
        optimizer = sharded.momentum([p for p in model.parameters() if p.requires_grad])
        first = sharded.whole(model)
        config = {"algorithm": algorithm, "drift_guard": {"every_steps": 2}}
        with relaxcomm.attach(model, optimizer, config) as engine:
            for step in range(14 if name == "auto" else 4):
                if name == "frozen since" and step == 2:
                    model[2].requires_grad_(False)
                    still = sharded.whole(model[2])
                case.loss(model(case.data(step, rank)[0]).float(), case.data(step, rank)[1]).backward()
                optimizer.step()
                optimizer.zero_grad()
            if name == "half":
                engine.switch({"name": "local_sgd", "steps": 2})
                case.loss(model(case.data(9, rank)[0]).float(), case.data(9, rank)[1]).backward()
                optimizer.step()
            if name == "frozen":
                with engine.join():
                    for step in range(2 + rank // SHARDS):
                        take_step(case.local_loss(model, step, rank), optimizer)
                for step in range(2):  # of which all have the same momentum
                    take_step(case.local_loss(model, step, rank), optimizer)
        found[name] = (first, sharded.whole(model))
        if name == "frozen since":  # its momentum has stopped
            np.testing.assert_array_equal(sharded.whole(model[2]), still)
    return found


def test_many_ways_to_train():
    found = run_ranks(many_ways, RANKS)
    for name in found[0]:
        first, last = found[0][name]
        assert not np.array_equal(first, last), name
        for rank in found[1:]:
            np.testing.assert_array_equal(rank[name][1], last, err_msg=name)


def refusals(rank: int) -> list[str]:
    def over_all(model: nn.Module) -> nn.Module:
        return fully_shard(model)

    def apart(model: nn.Module) -> nn.Module:
        fully_shard(model[0], mesh=mesh())
        return fully_shard(model, mesh=mesh()["shard"])

    def partly(model: nn.Module) -> nn.Module:
        return fully_shard(model, mesh=mesh()["shard"], ignored_params={model[0].bias})

    clip = {
        "rules": [
            {"payload": "deltas", "compressor": {"clip_norm": {"max_norm": 1.0}}, "exchange": "all_gather"}
        ]
    }
    cases: list[tuple[Any, dict[str, Any]]] = [
        (over_all, {"algorithm": "bsp"}),
        (apart, {"algorithm": "bsp"}),
        (partly, {"algorithm": "bsp"}),
        (shard, {"algorithm": clip}),
        (shard, {"algorithm": "bsp", "membership": {"elastic": True}}),
        (shard, {"algorithm": "bsp" if rank else "local_sgd"}),
    ]
    texts = []
    for wrap, config in cases:
        model = wrap(MODELS["toy"].model())
        optimizer = sharded.momentum(list(model.parameters()))
        with pytest.raises((CompositionError, ConfigError)) as caught:
            relaxcomm.attach(model, optimizer, {"timeout_seconds": 30, **config})
        texts.append(str(caught.value))
    return texts


def test_what_cannot_be_is_refused_on_all_ranks():
    found = run_ranks(refusals, RANKS)
    for texts in found:
        over_all, apart, partly, clip, elastic, differ = texts
        assert "no dimension of replicas" in over_all
        assert "sharded over 2 different meshes" in apart
        assert 'mesh=mesh["shard"]' in apart
        assert "0.bias is not sharded" in partly
        assert "each shard would be bounded" in clip
        assert "cannot go on" in elastic
        assert "ranks disagree on algorithm" in differ
        assert texts == found[0]


def watched(rank: int, folder: str) -> Any:
    config = {"algorithm": "local_sgd", "metrics": {"port": 0}, "output": folder}
    model = shard(MODELS["toy"].model())
    optimizer = sharded.momentum(list(model.parameters()))
    with relaxcomm.attach(model, optimizer, config) as engine:
        for step in range(17):
            take_step(MODELS["toy"].local_loss(model, step, rank), optimizer)
        return engine.metrics_url, engine.statistics["bytes_sent"]


def test_each_process_has_metrics_and_a_log_of_its_own():
    with tempfile.TemporaryDirectory() as folder:
        found = run_ranks(watched, RANKS, folder)
        assert len({url for url, _ in found}) == RANKS
        assert len(list(Path(folder).rglob("*.jsonl"))) == RANKS
    # Over a ring of two each sends its shard once; before, all have compared two numbers of each parameter.
    parameters = list(MODELS["toy"].model().parameters())
    compared = SHARDS * 2 * len(parameters)
    assert sum(sent for _, sent in found[SHARDS:]) == 8 * (sum(p.numel() for p in parameters) + compared)


def moved(rank: int) -> None:
    model = shard(MODELS["toy"].model())
    optimizer = sharded.momentum(list(model.parameters()))
    config = {"algorithm": "local_sgd", "timeout_seconds": 30}
    with (  # noqa: PT012  # a step is several statements
        pytest.raises(UsageError, match=r"the shard of .* has moved"),
        relaxcomm.attach(model, optimizer, config),
    ):
        model.float()
        inputs, targets = MODELS["toy"].data(0, rank)
        nn.functional.mse_loss(model(inputs.float()), targets.float()).backward()
        optimizer.step()


@pytest.mark.skipif(torch.__version__ < "2.10", reason="there torch's own forward refuses them, before us")
def test_shards_that_were_replaced_are_noticed():
    run_ranks(moved, RANKS)
