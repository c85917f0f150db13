"""What a composition makes of given local steps, and what operations bring back, on simulated ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relaxcomm.checks.trial_problem import quietly, settings_of
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.engine import attach
from relaxcomm.errors import UsageError
from relaxcomm.fields.validation import shown
from relaxcomm.network import InProcessGroup, simulate
from relaxcomm.network.operations import Label, Operation, Received
from relaxcomm.topology import Topology


def trajectory(
    algorithm: Algorithm | Rule | str | Mapping[str, Any],
    moves: Tensor | Sequence[Any],
    *,
    topology: Topology | str | Mapping[str, Any] | None = None,
) -> Tensor:
    """The parameters of simulated ranks after each step, where each rank's local steps are given.

    All parameters begin at 0; the optimizer is SGD with the learning rate 1, and rank n's gradient in step t
    is `-moves[t, n]`, so that alone it would move by just that.

    Args:
        algorithm: its name, `{"name": "local_sgd", "steps": 4}`, an `Algorithm`, one rule, or the mapping
            that `attach` takes, `{"algorithm": …, "topology": …}`.
        moves: `[steps, ranks]`, a number for each rank and step, or `[steps, ranks, numel]`.
        topology: of the ranks; the mapping's, or `complete`, unless given.

    Returns: the parameters, shaped as `moves`.

    Raises: CompositionError, TopologyError or ConfigError for what `attach` refuses; UsageError for moves of
        another shape.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, every, parameters
        >>> rule = Rule(trigger=every(steps=2), payload=parameters(), exchange=all_reduce())
        >>> trajectory(rule, [[1.0, 2.0, 6.0]] * 3)
        tensor([[ 1.,  2.,  6.],
                [ 6.,  6.,  6.],
                [ 7.,  8., 12.]])
    """
    try:
        given = torch.as_tensor(moves, dtype=torch.float32)
        got = f"of shape {list(given.shape)}"
    except (TypeError, ValueError, RuntimeError):  # numbers are missing, or are none
        given, got = torch.empty(0), shown(moves)
    if given.dim() not in (2, 3) or not given.numel():
        raise UsageError(
            f"moves {got} are not allowed; give [steps, ranks], such as [[1.0, 3.0]] * 4, or [steps, ranks, "
            "numel]"
        )
    steps = given if given.dim() == 3 else given.unsqueeze(-1)
    named = Algorithm((algorithm,), name="one_rule") if isinstance(algorithm, Rule) else algorithm
    settings = settings_of(named, topology)

    def program(group: InProcessGroup) -> Tensor:
        model = nn.ParameterList([nn.Parameter(torch.zeros(steps.shape[2], dtype=steps.dtype))])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with attach(model, optimizer, settings, process_group=group):
            seen = []
            for move in steps[:, group.rank()]:
                group.sleep(1.0)
                optimizer.zero_grad()
                (-move @ model[0]).backward()
                optimizer.step()
                seen.append(model[0].detach().clone())
            return torch.stack(seen)

    return torch.stack(quietly(program, steps.shape[1]), dim=1).view_as(given)


def perform(operations: Sequence[Operation]) -> list[Received]:
    """Issue one operation on each simulated rank, and wait for what it receives.

    Args:
        operations: that of rank r at place r; all of one kind. A `Request` needs a service, so it cannot be
            among them.

    Returns: what each rank receives, in rank order.

    Raises: CommunicationError or DeadlockError for operations that do not fit each other.

    Example:
        >>> import torch
        >>> from relaxcomm import perform
        >>> from relaxcomm.plugin import AllReduce
        >>> perform([AllReduce(torch.tensor([1.0])), AllReduce(torch.tensor([3.0]))])
        [tensor([2.]), tensor([2.])]
    """

    def issue(group: InProcessGroup) -> Received:
        return group.transport().issue(operations[group.rank()], Label(0, "perform")).wait()

    return simulate(issue, len(operations))
