"""What is recorded: every bundled algorithm, with the options that take another way through the engine."""

from __future__ import annotations

from typing import Any

BRISK = {"window_steps": 3, "threshold": 0.05}
TWO_SIDED = {"scatter_gather": {"server_feedback": True}}
LATE = {"payload": "deltas", "trigger": {"every": {"steps": 3}}, "delay": 2}
CASES: dict[str, dict[str, Any]] = {
    "ad_psgd": {"name": "ad_psgd"},
    "adaptive_local_sgd": {"name": "adaptive_local_sgd", "steps": 3, "max_batch_size": 8, "sketch_size": 16},
    "adaptive_local_sgd samples": {
        "name": "adaptive_local_sgd",
        "steps": 3,
        "max_batch_size": 8,
        "estimator": "samples",
    },
    "async_model_average": {"name": "async_model_average"},
    "async_model_average coded": {"name": "async_model_average", "steps": 2, "compressor": "minmax_uint8"},
    "bsp": {"name": "bsp"},
    "bytegrad": {"name": "bytegrad", "block_size": 16},
    "choco_sgd": {"name": "choco_sgd"},
    "choco_sgd top_k": {"name": "choco_sgd", "compressor": {"top_k": {"density": 0.2}}},
    "d_psgd": {"name": "d_psgd"},
    "dcd_psgd": {"name": "dcd_psgd"},
    "decoupled_diloco": {"name": "decoupled_diloco", "steps": 4, "quorum": 2, "delay": 2},
    "decoupled_diloco all": {"name": "decoupled_diloco", "steps": 4, "quorum": 3, "delay": 0},
    "decoupled_diloco parts": {
        "name": "decoupled_diloco",
        "steps": 4,
        "delay": 1,
        "compressor": "minmax_uint8",
    },
    "delayed_sgd": {"name": "delayed_sgd", "delay": 2},
    "demo": {"name": "demo", "num_kept": 3, "chunk_size": 8},
    "des_loc": {"name": "des_loc", "steps": 2, "first_steps": 3, "second_steps": 4},
    "dgc": {"name": "dgc", "density": 0.1},
    "diloco": {"name": "diloco", "steps": 4},
    "easgd": {"name": "easgd", "steps": 3},
    "ef21": {"name": "ef21", "density": 0.1},
    "ef_signsgd": {"name": "ef_signsgd"},
    "fedavg": {"name": "fedavg"},
    "fedavg sampled": {"name": "fedavg", "clients": 5, "fraction": 0.6, "epochs": 2, "proximal": 0.1},
    "fedavg adam": {"name": "fedavg", "clients": 4, "server": "adam", "server_lr": 0.05},
    "gaussiank_sgd": {"name": "gaussiank_sgd", "density": 0.1},
    "gaussiank_sgd published": {"name": "gaussiank_sgd", "density": 0.1, "fallback": None},
    "gravac": {"name": "gravac", "window": 4, "most": 0.3, "least": 0.05},
    "heloco": {"name": "heloco", "steps": 3},
    "hierarchical_local_sgd": {"name": "hierarchical_local_sgd", "steps": 3},
    "local_sgd": {"name": "local_sgd", "steps": 3},
    "local_sgd late": {"name": "local_sgd", "steps": 4, "delay": 2},
    "local_sgd fragments": {"name": "local_sgd", "steps": 4, "fragments": 2},
    "local_sgd moments": {"name": "local_sgd", "steps": 3, "moments": ["momentum_buffer"]},
    "local_sgd coded": {"name": "local_sgd", "steps": 3, "compressor": "minmax_uint8"},
    "low_precision_decentralized": {"name": "low_precision_decentralized"},
    "noloco": {"name": "noloco", "steps": 3, "gamma": 0.6},
    "one_peer_exponential": {"name": "one_peer_exponential"},
    "post_local_sgd": {"name": "post_local_sgd", "steps": 3, "after_steps": 5},
    "powersgd": {"name": "powersgd"},
    "qadam": {"name": "qadam", "warmup_steps": 4},
    "qsgd": {"name": "qsgd", "block_size": 16},
    "randomk_sgd": {"name": "randomk_sgd", "density": 0.1},
    "selsync": {"name": "selsync", **BRISK},
    "selsync all": {"name": "selsync", **BRISK, "agree": "all"},
    "selsync gradients": {"name": "selsync", **BRISK, "aggregate": "gradients"},
    "selsync late": {"name": "selsync", **BRISK, "delay": 1},
    "selsync late votes": {"name": "selsync", **BRISK, "vote_delay": 1},
    "sgp": {"name": "sgp"},
    "signsgd": {"name": "signsgd"},
    "slowmo": {"name": "slowmo", "steps": 3},
    "sparseloco": {"name": "sparseloco", "steps": 3, "num_kept": 4, "chunk_size": 16},
    "ssp": {"name": "ssp", "staleness": 0},
    "ssp stale": {"name": "ssp", "staleness": 2},
    "ssp coded": {"name": "ssp", "staleness": 1, "compressor": "minmax_uint8"},
    "streaming_diloco": {"name": "streaming_diloco", "steps": 4, "delay": 2},
    "terngrad": {"name": "terngrad"},
    "topk_sgd": {"name": "topk_sgd", "density": 0.1},
    "rules": {
        "rules": [
            {
                "trigger": {"every": {"steps": 2}},
                "payload": "gradients",
                "compressor": {
                    "error_feedback": {
                        "compressor": {"chain": [{"top_k": {"density": 0.2}}, {"quantize": {"bits": 8}}]}
                    }
                },
                "exchange": "all_gather",
                "select": "0.*",
            },
            {
                "trigger": "every_step",
                "payload": "gradients",
                "exchange": "all_reduce",
                "select": ["1.*", "3.*", "5.*"],
            },
            {"trigger": {"every": {"steps": 5}}, "payload": "parameters", "exchange": "all_reduce"},
        ]
    },
}
UNRECORDED: dict[str, dict[str, Any]] = {
    name: {"rules": [{"payload": "gradients", "compressor": compressor, "exchange": exchange} | more]}
    for name, compressor, exchange, more in (
        ("drawn", {"quantize": {"bits": 3, "rounding": "stochastic"}}, "scatter_gather", {}),
        ("two-sided", {"error_feedback": "sign"}, TWO_SIDED, {}),
        ("late residuals", {"error_feedback": {"top_k": {"density": 0.3}}}, "all_gather", LATE),
        ("late two-sided", {"error_feedback": {"quantize": {"bits": 2}}}, TWO_SIDED, LATE),
    )
}
"""What is stopped and resumed beside them."""
TOPOLOGIES: dict[str, Any] = {
    "hierarchical_local_sgd": {"hierarchical": {"sizes": [2, 1]}},
    "d_psgd": "ring",
    "choco_sgd": "ring",
    "choco_sgd top_k": "ring",
    "dcd_psgd": "ring",
    "sgp": "exponential",
}
WITHOUT_MOMENTUM = {"dgc", "qadam"}  # which have their own
WITH_ADAM = {"des_loc"}  # which exchanges its moments
LOOPS = {
    "plain": lambda name: name != "adaptive_local_sgd samples",
    "accumulated": lambda name: True,
}
"""How a step is trained, and with what; "accumulated" is in two micro-batches, then gradients are clipped."""
