"""What averages parameters every few steps: PyTorch's averagers and Accelerate's Local SGD."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from benchmarks.lab.contenders import Contender


class PeriodicAveraging(Contender):
    """PyTorch's PeriodicModelAverager on a plain module.

    Args:
        steps: between two averagings.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, steps: int) -> None:
        super().__init__(model, optimizer)
        averager = PeriodicModelAverager(period=steps, warmup_steps=0)
        # It skips what has no gradient, so that it has to run before zero_grad, as in its documentation.
        self._hook = optimizer.register_step_post_hook(
            lambda *_: averager.average_parameters(model.parameters())
        )

    def close(self) -> None:
        self._hook.remove()


class PostLocalSGD(Contender):
    """PyTorch's post-local SGD: DDP first, then averaged parameters.

    Args:
        steps: between two averagings.
        after_steps: steps with averaged gradients before that.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, steps: int, after_steps: int) -> None:
        # Here, because importing it warns of what PyTorch deprecated in itself.
        from torch.distributed.optim import PostLocalSGDOptimizer

        # The processes of one host, which the hook wants to find by counting GPUs: one each here, whose
        # all-reduce among itself is skipped.
        self._alone, _ = dist.new_subgroups(group_size=1)
        state = PostLocalSGDState(None, self._alone, after_steps, post_local_gradient_allreduce=False)
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(period=steps, warmup_steps=after_steps)
        super().__init__(ddp, PostLocalSGDOptimizer(optimizer, averager))

    def close(self) -> None:
        dist.destroy_process_group(self._alone)


class AccelerateLocalSGD(Contender):
    """Accelerate's LocalSGD, on the lab's process group.

    Args:
        steps: between two averagings.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, steps: int) -> None:
        from accelerate import Accelerator
        from accelerate.local_sgd import LocalSGD

        # On the CPU it takes the process group that it finds, if RANK and WORLD_SIZE are in the environment.
        self._accelerator = Accelerator(cpu=True)
        super().__init__(*self._accelerator.prepare(model, optimizer))
        self._local_sgd = LocalSGD(self._accelerator, self.model, local_sgd_steps=steps)
        self._local_sgd.__enter__()

    def after_step(self) -> None:
        self._local_sgd.step()

    def close(self) -> None:
        self._local_sgd.__exit__(None, None, None)  # averages once more
        self._accelerator.free_memory()  # documented for "between two trainings"; the process group stays
