"""Small numbers on which all ranks decide together: added up over the ranks, on a host in one message.

Where replicas are sharded, all ranks are those of all shards: what they decide holds for whole replicas.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relaxcomm.network.operations import Agree, AllReduce, Label
from relaxcomm.network.transport import Pending
from relaxcomm.step.world import World, flag_of, tensor_of


@dataclass(eq=False)
class _Message:
    """Numbers of one or several questions on their way."""

    world: World
    pending: Pending | None = None
    total: Tensor | None = None

    def wait(self) -> Tensor:
        """The numbers' sums."""
        if self.total is None:
            assert self.pending is not None, "what is asked must be sent before it is read"
            self.total, self.pending = tensor_of(self.world.receive(self.pending)), None
        return self.total


@dataclass(eq=False)
class Answer:
    """The sum over all ranks of what each has asked with."""

    numbers: Tensor
    message: _Message
    begin: int

    def read(self) -> Tensor:
        """`[k]`; waits for the message if it has not come: of numbers on a GPU it waits, and not the host."""
        return self.message.wait()[self.begin : self.begin + len(self.numbers)]


class Agreements:
    """Packs what the ranks must agree on into one message: every rank asks the same in the same order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: list[tuple[str, Answer]] = []
        self._message = _Message(world)

    def ask(self, name: str, numbers: Tensor) -> Answer:
        """Ask for the sum over all ranks of `numbers` (`[k]`), which `send` sends with all else."""
        begin = sum(len(answer.numbers) for _, answer in self._asked)
        answer = Answer(numbers.cpu(), self._message, begin)
        self._asked.append((name, answer))
        return answer

    def ask_where_it_lies(self, name: str, numbers: Tensor, step: int) -> Answer:
        """The same, but numbers on a GPU stay there, whose host must not wait: they go at once, alone."""
        if numbers.device.type != "cuda":
            return self.ask(name, numbers)
        label = Label(step, name)
        operation = AllReduce(self._world.over_shards(numbers, label), "sum")
        return Answer(numbers, _Message(self._world, self._world.issue(operation, label)), 0)

    def send(self, step: int) -> None:
        """Issue one message for all that was asked since the last one; none if nothing was."""
        if not self._asked:
            return
        names = [name for name, _ in self._asked]
        # Of several types torch takes the widest for all.
        numbers = torch.cat([answer.numbers for _, answer in self._asked])
        label = Label(step, names[0] if len(names) == 1 else "agreement")
        numbers = self._world.over_shards(numbers, label)
        self._message.pending = self._world.issue(Agree(numbers, "sum"), label)
        self._asked, self._message = [], _Message(self._world)

    def decide(self, name: str, numbers: Tensor, step: int) -> Tensor:
        """The largest numbers of all ranks, at once, in a message of their own."""
        label = Label(step, name)
        return self._world.run(Agree(self._world.over_shards(numbers, label, "max"), "max"), label)

    def any(self, bad: bool, name: str, step: int) -> bool:
        """Whether something is so on any rank."""
        return bool(self.decide(name, flag_of(bad), step).item() > 0)
