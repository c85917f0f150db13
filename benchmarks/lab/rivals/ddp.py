"""PyTorch's DistributedDataParallel and its communication hooks."""

from __future__ import annotations

import math

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from benchmarks.lab.contenders import Contender


class DDP(Contender):
    """Averages the gradients in every step, in buckets, while backward still runs."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(DistributedDataParallel(model), optimizer)


class DDPHalf(Contender):
    """DDP with PyTorch's hook that sends gradients as float16."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(None, fp16_compress_hook)
        super().__init__(ddp, optimizer)


class DDPPowerSGD(Contender):
    """DDP with PyTorch's PowerSGD hook.

    Args:
        matrix_rank: rank of the factors that are sent.
        exact_steps: first steps, in which gradients are averaged as they are.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, *, matrix_rank: int = 1, exact_steps: int = 10
    ) -> None:
        # With two buckets its nested collectives deadlock on gloo, so that everything goes into one.
        size_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        ddp = DistributedDataParallel(model, bucket_cap_mb=math.ceil(size_bytes / 2**20))
        # The hook's own default, 1000 exact steps, would compress nothing in a short trial.
        state = PowerSGDState(None, matrix_approximation_rank=matrix_rank, start_powerSGD_iter=exact_steps)
        ddp.register_comm_hook(state, powerSGD_hook)
        super().__init__(ddp, optimizer)
