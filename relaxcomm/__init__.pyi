from . import checkpoint as checkpoint
from .checks import (
    Finding as Finding,
    Rehearsal as Rehearsal,
    check as check,
    perform as perform,
    rehearse as rehearse,
    round_trip as round_trip,
    trajectory as trajectory,
)
from .composition.algorithm import Algorithm as Algorithm
from .composition.rule import Rule as Rule
from .engine import (
    Engine as Engine,
    attach as attach,
)
from .errors import (
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
from .integrations.ddp import ddp_hook as ddp_hook
from .network import (
    InProcessGroup as InProcessGroup,
    Link as Link,
    simulate as simulate,
)
from .roles import RELAXCOMM_PROTOCOL as RELAXCOMM_PROTOCOL
from .tasks import Task as Task
from .topology import (
    Topology as Topology,
    from_networkx as from_networkx,
)
