"""Every exception that relaxcomm raises, in one tree.

RelaxcommError
├── ConfigError            a YAML key, value or name that is not allowed (also a ValueError)
├── CompositionError       primitives that cannot work together, or with this model or optimizer
├── TopologyError          a graph that cannot carry the exchange that was asked for
├── PluginError            an entry point that cannot be loaded or declares what it does not do
├── UsageError             the training loop does what the engine cannot honour
│   └── NonFiniteError     a gradient, parameter or buffer holds NaN or infinity
├── CheckpointError        a checkpoint could not be written
├── ForgeryError           what came was not made with the shared secret
└── CommunicationError     a peer failed, is missing, or is somewhere else in the run
    ├── RankLostError      it has ended, or cannot be reached: the others could go on without it
    ├── RejoinedError      the others went on without this worker, which is with them again, elsewhere
    └── DeadlockError      in-process ranks wait for each other for ever
"""

from collections.abc import Sequence

_LONGEST_CHARACTERS = 1_800
_LAST_CHARACTERS = 600


def worded(error: BaseException) -> str:
    """Its type and what it says, if it says anything.

    Example:
        >>> worded(ValueError("the disk is full")), worded(KeyboardInterrupt())
        ('ValueError: the disk is full', 'KeyboardInterrupt')
    """
    return ": ".join(filter(None, (type(error).__name__, str(error))))


def some_of(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and how many more there are.

    Example:
        >>> some_of(["a", "b", "c"], 2), some_of(["a", "b"], 2)
        ('a, b and 1 more', 'a, b')
    """
    left_out = len(names) - most
    return ", ".join(names[:most]) + (f" and {left_out} more" if left_out > 0 else "")


class RelaxcommError(Exception):
    """Base of every error that relaxcomm raises on purpose.

    Attributes:
        key: of a configuration, the keys and places in lists below what is being read, where it is known.
        faults: what is wrong below that key, by the keys below it, where several things may be.
    """

    key: tuple[int | str, ...] = ()
    faults: tuple[tuple[tuple[int | str, ...], str], ...] = ()


class _InputError(RelaxcommError):
    """Base of those that quote what somebody gave; what is too long to be read loses its middle."""

    def __init__(self, message: str = "") -> None:
        left_out = len(message) - _LONGEST_CHARACTERS
        if left_out > 0:
            cut = _LONGEST_CHARACTERS - _LAST_CHARACTERS
            message = f"{message[:cut]} [… {left_out:,} characters …] {message[-_LAST_CHARACTERS:]}"
        super().__init__(message)


class ConfigError(_InputError, ValueError):
    """A configuration key, value or name is not allowed; the message lists what is."""


class CompositionError(_InputError, ValueError):
    """A rule or algorithm was refused when it was built; the message names a legal neighbour."""


class TopologyError(_InputError, ValueError):
    """A graph cannot carry the exchange that was asked for."""


class PluginError(_InputError):
    """A plug-in could not be loaded or breaks the protocol that it declares."""


class UsageError(RelaxcommError, RuntimeError):
    """The training loop did something that the engine cannot honour without skipping work."""


class NonFiniteError(UsageError):
    """A gradient, parameter or buffer holds NaN or infinity; the message says which, and on which rank.

    Args:
        message: what is said.
        on_all_ranks: whether every rank raises it in the same place, so that all of them may go on: with the
            next batch, or from a state that they load.
    """

    def __init__(self, message: str, *, on_all_ranks: bool = False) -> None:
        super().__init__(message)
        self.on_all_ranks = on_all_ranks


class ForgeryError(RelaxcommError):
    """What came through the network or the store was not made with `membership: {secret: …}`."""


class CommunicationError(RelaxcommError, RuntimeError):
    """A peer failed, did not arrive in time, or issued another operation."""


class RankLostError(CommunicationError):
    """A peer has ended, failed or did not arrive in time; with `membership: {elastic: true}` others go on."""


class RejoinedError(CommunicationError):
    """The others went on without this worker and have admitted it again: go on with the step after theirs."""


class DeadlockError(CommunicationError):
    """Every in-process rank waits for another one; the message says who waits for whom."""


class CheckpointError(RelaxcommError):
    """A checkpoint could not be written, by this rank or another; older ones are untouched."""


class DriftError(RelaxcommError):
    """Replicas that should be equal are not."""


class ConfigWarning(UserWarning):
    """A key of the configuration has no effect here."""


class CompositionWarning(UserWarning):
    """A composition that works, but probably not as well as one with a small change."""


class CheckpointWarning(UserWarning):
    """The newest checkpoint is damaged, and the run goes on from an older one."""


class MetricsWarning(UserWarning):
    """Metrics are not where they were asked for, or cannot be reached; training goes on."""


class DriftWarning(UserWarning):
    """Replicas that should be equal are not, and the drift guard's policy is to go on."""
