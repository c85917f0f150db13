"""Messages as rows of equal length, which ranks scatter and gather."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from relaxcomm.network.operations import AllGather, AllToAll
from relaxcomm.primitives.exchanges.message_rounds import received
from relaxcomm.roles import Exchanging
from relaxcomm.tensors.messages import Message, pieces


def scatter(messages: Sequence[Message]) -> Exchanging:
    """Send each rank the message of its part; those of smaller parts are filled up with zeros."""
    return received_rows(AllToAll(_rows(messages, _width(messages))), messages[0])


def gather(message: Message, like: Sequence[Message]) -> Exchanging:
    """Send all ranks a message, filled up as it would be among some that were scattered; those of all."""
    return received_rows(AllGather(_rows([message], _width(like))[0]), message)


def received_rows(operation: AllGather | AllToAll, like: Message) -> Exchanging:
    """Yield an operation, and return the messages that it brings, a row a rank.

    On a GPU they are moved together where numbers would have to be copied out of each row to be read.
    """
    rows = yield from received(operation)
    missing = -rows.shape[1] % like.widest
    return pad(rows, (0, missing)) if missing and rows.device.type == "cuda" else rows


def _width(messages: Sequence[Message]) -> int:
    return max(message.num_bytes for message in messages)


def _rows(messages: Sequence[Message], width: int) -> Tensor:
    """In one copy, however many they are."""
    together: list[Tensor] = []
    missing = [width - message.num_bytes for message in messages]
    zeros = pieces(messages[0])[0].new_zeros(max(missing))
    for message, number in zip(messages, missing, strict=True):
        together += [*pieces(message), zeros[:number]]
    return torch.cat(together).view(len(messages), width)
