"""For authors of primitives: the roles, what they see and send, and the types of their arguments."""

from relaxcomm.composition.exchange_cost import (
    ExchangeCost as ExchangeCost,
    Speeds as Speeds,
    exchange_cost as exchange_cost,
)
from relaxcomm.data.clients import RoundPlan as RoundPlan
from relaxcomm.data.partitions import Partition as Partition
from relaxcomm.fields.frozen import (
    Bits as Bits,
    Fraction as Fraction,
    Index as Index,
    Levels as Levels,
    Rate as Rate,
    Share as Share,
    Steps as Steps,
    Threshold as Threshold,
    frozen as frozen,
)
from relaxcomm.fields.names import Moments as Moments
from relaxcomm.fields.schedules import (
    Density as Density,
    ScheduledBits as ScheduledBits,
)
from relaxcomm.network import Service as Service
from relaxcomm.network.operations import (
    Agree as Agree,
    AllGather as AllGather,
    AllReduce as AllReduce,
    AllToAll as AllToAll,
    Broadcast as Broadcast,
    Neighbors as Neighbors,
    Request as Request,
)
from relaxcomm.network.transport import Membership as Membership
from relaxcomm.primitives.compressors.decode import finish as finish
from relaxcomm.primitives.compressors.memory import (
    Memory as Memory,
    inner_slots as inner_slots,
    inner_state as inner_state,
)
from relaxcomm.primitives.exchanges.quorum_average import Quorum as Quorum
from relaxcomm.primitives.exchanges.server import Staleness as Staleness
from relaxcomm.roles import (
    Agreement as Agreement,
    Awaited as Awaited,
    Coding as Coding,
    Compressor as Compressor,
    CompressorFacts as CompressorFacts,
    Context as Context,
    Controller as Controller,
    ControllerFacts as ControllerFacts,
    Exchange as Exchange,
    ExchangedBucket as ExchangedBucket,
    ExchangeFacts as ExchangeFacts,
    Exchanging as Exchanging,
    MicroGradients as MicroGradients,
    Observation as Observation,
    Outer as Outer,
    OuterFacts as OuterFacts,
    Parts as Parts,
    Payload as Payload,
    PayloadFacts as PayloadFacts,
    Served as Served,
    Stage as Stage,
    State as State,
    Trigger as Trigger,
    TriggerFacts as TriggerFacts,
    VotingTrigger as VotingTrigger,
)
from relaxcomm.roles.carried import Carried as Carried
from relaxcomm.roles.planner import (
    Measured as Measured,
    Planner as Planner,
    PlannerFacts as PlannerFacts,
)
from relaxcomm.tensors.bit_packing import (
    pack_codes as pack_codes,
    pack_places as pack_places,
    packed_bytes as packed_bytes,
    places_bytes as places_bytes,
    unpack_codes as unpack_codes,
    unpack_places as unpack_places,
)
from relaxcomm.tensors.buckets import Bucket as Bucket
from relaxcomm.tensors.differences import Difference as Difference
from relaxcomm.tensors.items import Item as Item
from relaxcomm.tensors.layout import (
    Layout as Layout,
    one_tensor as one_tensor,
)
from relaxcomm.tensors.messages import (
    DENSE as DENSE,
    MAXIMUM as MAXIMUM,
    MIXED as MIXED,
    MOST_PLACES as MOST_PLACES,
    QUANTIZED as QUANTIZED,
    SHARED_SUPPORT as SHARED_SUPPORT,
    SIGNS as SIGNS,
    SPARSE as SPARSE,
    Dense as Dense,
    Maximum as Maximum,
    Message as Message,
    Quantized as Quantized,
    Several as Several,
    SharedSupport as SharedSupport,
    Signs as Signs,
    Sparse as Sparse,
)
from relaxcomm.tensors.segments import Segments as Segments
