"""Modular communication for data-parallel PyTorch training over slow networks."""

from relaxcomm import checkpoint as checkpoint
from relaxcomm.checks import (
    Finding as Finding,
    Rehearsal as Rehearsal,
    check as check,
    perform as perform,
    rehearse as rehearse,
    round_trip as round_trip,
    trajectory as trajectory,
)
from relaxcomm.composition.algorithm import Algorithm as Algorithm
from relaxcomm.composition.rule import Rule as Rule
from relaxcomm.engine import (
    Engine as Engine,
    attach as attach,
)
from relaxcomm.errors import (
    CheckpointError as CheckpointError,
    CheckpointWarning as CheckpointWarning,
    CommunicationError as CommunicationError,
    CompositionError as CompositionError,
    CompositionWarning as CompositionWarning,
    ConfigError as ConfigError,
    ConfigWarning as ConfigWarning,
    DeadlockError as DeadlockError,
    DriftError as DriftError,
    DriftWarning as DriftWarning,
    MetricsWarning as MetricsWarning,
    NonFiniteError as NonFiniteError,
    PluginError as PluginError,
    RankLostError as RankLostError,
    RelaxcommError as RelaxcommError,
    TopologyError as TopologyError,
    UsageError as UsageError,
)
from relaxcomm.integrations.ddp import ddp_hook as ddp_hook
from relaxcomm.network import (
    InProcessGroup as InProcessGroup,
    Link as Link,
    simulate as simulate,
)
from relaxcomm.roles import RELAXCOMM_PROTOCOL as RELAXCOMM_PROTOCOL
from relaxcomm.tasks import Task as Task
from relaxcomm.topology import (
    Topology as Topology,
    from_networkx as from_networkx,
)
