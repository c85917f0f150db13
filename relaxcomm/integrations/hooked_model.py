"""What a communication hook knows of the model whose gradients it is given."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from relaxcomm.engine.attaching.consistency import sharing_errors
from relaxcomm.engine.attaching.device_checks import check_gpus, current_gpu, gpu_holding
from relaxcomm.network import Transport


class HookedModel:
    """The names in a model, its buffers, and the GPU that is current where this is made.

    In backward that tells nothing: torch makes the gradients' own GPU the current one there.

    Args:
        module: the model, or None where it is not known.
    """

    def __init__(self, module: nn.Module | None) -> None:
        named = module.named_parameters() if module is not None else ()
        self._names: dict[Tensor, str] = {p: name for name, p in named}
        self._buffers = dict(module.named_buffers()) if module is not None else {}
        self._current = current_gpu()

    def name(self, parameter: Tensor, index: int) -> str:
        """A parameter's name; where it is not known, its number."""
        return self._names.get(parameter, f"parameter {index}")

    def check_devices(self, parameters: Sequence[Tensor], transport: Transport) -> None:
        """Refuse what NCCL cannot connect; every rank must call it.

        Args:
            parameters: all that have gradients.
            transport: to the other ranks.

        Raises: UsageError, on every rank.
        """
        named = {self.name(p, index): p for index, p in enumerate(parameters)}
        with sharing_errors(transport, "the first backward") as told:
            told.mine = gpu_holding(named, self._buffers, transport, self._current)
        check_gpus(told.everyone)
