"""What relaxcomm is compared with, each used as its documentation says."""

from benchmarks.lab.contenders import Contender
from benchmarks.lab.rivals.averaging import AccelerateLocalSGD, PeriodicAveraging, PostLocalSGD
from benchmarks.lab.rivals.ddp import DDP, DDPHalf, DDPPowerSGD
from benchmarks.lab.rivals.fault_tolerant import TorchftDiLoCo, TorchftLocalSGD
from benchmarks.lab.rivals.swarm import Hivemind

RIVALS: dict[str, type[Contender]] = {
    "ddp": DDP,
    "ddp_fp16": DDPHalf,
    "ddp_powersgd": DDPPowerSGD,
    "periodic_averaging": PeriodicAveraging,
    "post_local_sgd": PostLocalSGD,
    "accelerate_local_sgd": AccelerateLocalSGD,
    "torchft_local_sgd": TorchftLocalSGD,
    "torchft_diloco": TorchftDiLoCo,
    "hivemind": Hivemind,
}

# What was tried on gloo and cannot take part, and why.
CANNOT: dict[str, str] = {
    "ddp_bf16": "DDP refuses PyTorch's bf16 hook and its wrapper without CUDA and NCCL, or XPU and XCCL.",
    "hivemind_optimizer": "Its local updates are averaged when the swarm hears of its progress, not every so "
    "many steps: in 100 steps of 20 ms, asked for every 8, it began 4 averagings of 12; hivemind's averager "
    "takes part.",
}
