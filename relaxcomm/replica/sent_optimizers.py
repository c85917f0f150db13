"""States of optimizers that one rank sends to others, who may list the same parameters in other orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from relaxcomm.replica.optimizer_order import Listed, as_listed, counterparts, has_torchs_form, listed
from relaxcomm.replica.replica import Replica
from relaxcomm.replica.sharding import load_held

Sent: TypeAlias = Sequence[tuple[Listed, Mapping[str, Any]]]
"""Of each optimizer its parameters' names and its state."""


def states(replica: Replica) -> Sent:
    """The states of this rank's optimizers."""
    return [(names, one.state_dict()) for names, one in zip(listed(replica), replica.optimizers, strict=True)]


def load(replica: Replica, sent: Sent) -> None:
    """Have the optimizers go on from what another rank has sent, parameter by parameter.

    Raises: ConfigError where that has other groups.
    """
    ours = listed(replica)
    places = counterparts(ours, [theirs for theirs, _ in sent], "another rank")
    for one, names, place in zip(replica.optimizers, ours, places, strict=True):
        state = as_listed(replica, names, *sent[place])
        if has_torchs_form(state, names):
            load_held(one, state)
        else:
            one.load_state_dict(dict(state))
