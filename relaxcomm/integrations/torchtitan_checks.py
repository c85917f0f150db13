"""What torchtitan's configuration says of replicas; what they cannot be is refused."""

from __future__ import annotations

from typing import Any

from torchtitan.tools.utils import device_type

from relaxcomm.errors import ConfigError
from relaxcomm.system.environment import launched


def num_replicas(config: Any) -> int:
    """How many there are."""
    return int(config.parallelism.data_parallel_replicate_degree)


def check(config: Any) -> None:
    """Refuse what no replica can be, or what would never be exchanged.

    Raises: ConfigError.
    """
    of, replicas = config.parallelism, num_replicas(config)
    degrees = ("pipeline", "tensor", "context", "expert")
    more = [f"{name}_parallel_degree" for name in degrees if getattr(of, f"{name}_parallel_degree") > 1]
    if more:
        raise ConfigError(
            f"parallelism: {', '.join(more)} above 1, but what replicas exchange must be sharded by "
            "data_parallel_shard_degree alone"
        )
    if replicas == 1 and launched().world_size > 1:
        raise ConfigError(
            "parallelism.data_parallel_replicate_degree is 1, so that there is one replica, which exchanges "
            "with nobody; set it to the number of replicas"
        )
    batch = config.training.global_batch_size
    if batch > 0 and batch % replicas:
        raise ConfigError(
            f"training.global_batch_size is {batch}, which {replicas} replicas do not share evenly; take a "
            "multiple"
        )
    if device_type == "cuda" and not config.training.disable_cuda_graphs:
        raise ConfigError(
            "training.disable_cuda_graphs is false: a replayed graph would exchange nothing; set it to true"
        )
