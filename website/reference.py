"""The pages of the reference: every public name, under a heading of what it is for."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from relaxcomm import primitives
from relaxcomm.fields.frozen import Declared

USERS = {
    "Training": ("attach", "Engine", "Task", "checkpoint.save", "checkpoint.load", "ddp_hook"),
    "Algorithms": ("Algorithm", "Rule", "Topology", "from_networkx"),
    "Simulated networks": ("simulate", "InProcessGroup", "Link"),
    "Trying and checking": (
        *("trajectory", "rehearse", "Rehearsal", "round_trip", "perform", "check", "Finding"),
        "RELAXCOMM_PROTOCOL",
    ),
    "Errors": (
        *("RelaxcommError", "ConfigError", "CompositionError", "TopologyError", "UsageError", "PluginError"),
        *("CommunicationError", "RankLostError", "DeadlockError", "CheckpointError", "DriftError"),
        "NonFiniteError",
    ),
    "Warnings": (
        *("CheckpointWarning", "CompositionWarning", "ConfigWarning", "DriftWarning", "MetricsWarning"),
    ),
}
AUTHORS = {
    "Declaring": ("frozen", "finish"),
    "Around a compressor": ("Memory", "inner_slots", "inner_state"),
    "Roles": (
        *("Trigger", "VotingTrigger", "Payload", "Compressor", "Exchange", "Outer", "Controller", "Planner"),
        "Partition",
    ),
    "Facts": (
        *("TriggerFacts", "PayloadFacts", "CompressorFacts", "ExchangeFacts", "OuterFacts"),
        *("ControllerFacts", "PlannerFacts", "Carried"),
    ),
    "What primitives see": (
        *("Context", "Bucket", "Item", "Difference", "Layout", "one_tensor", "Segments", "State"),
        *("Membership", "Observation", "ExchangedBucket", "MicroGradients", "Measured", "RoundPlan"),
    ),
    "Messages": (
        *(
            "Message",
            "Dense",
            "Sparse",
            "SharedSupport",
            "Quantized",
            "Signs",
            "Maximum",
            "Several",
            "Parts",
            "Coding",
        ),
        *("DENSE", "SPARSE", "SHARED_SUPPORT", "QUANTIZED", "SIGNS", "MAXIMUM", "MIXED", "MOST_PLACES"),
    ),
    "Packing bits": (
        *("pack_codes", "unpack_codes", "packed_bytes", "pack_places", "unpack_places", "places_bytes"),
    ),
    "Operations": (
        *("AllReduce", "AllGather", "AllToAll", "Broadcast", "Neighbors", "Request", "Agree", "Exchanging"),
        *("Service", "Served", "Stage", "Awaited"),
    ),
    "Costs": ("ExchangeCost", "Speeds", "exchange_cost"),
    "Types of arguments": (
        *("Steps", "Rate", "Fraction", "Share", "Bits", "Levels", "Threshold", "Index", "Density"),
        *("ScheduledBits", "Agreement", "Staleness", "Quorum", "Moments"),
    ),
}
INTEGRATIONS = {
    "Accelerate": ("accelerate.Accelerator",),
    "Lightning": ("lightning.RelaxcommStrategy", "lightning.LogStatistics"),
    "Ray Train": ("ray.report", "ray.resume"),
    "torchtitan": ("torchtitan.Trainer",),
    "Transformers": ("transformers.Trainer",),
    "DistributedDataParallel": ("ddp.ddp_hook",),
    "Versions that were tried": ("Framework", "FRAMEWORKS"),
}
IN_PARTS = ("Engine", "Rule")
"""Classes whose methods stand in bases that nobody imports."""
ROLES = {
    "Triggers": "trigger",
    "Payloads": "payload",
    "Compressors": "compressor",
    "Exchanges": "exchange",
    "Outer optimizers": "outer",
    "Controllers": "controller",
    "Topologies": "topology",
    "Partitions of the data": "partition",
    "Values that change with the clock": "schedule",
}


def _by_role() -> dict[str, tuple[str, ...]]:
    """The primitives under the headings of their roles; functions beside what they return."""
    found: dict[str, list[str]] = {heading: [] for heading in ROLES}
    headings = {role: heading for heading, role in ROLES.items()}
    for name, value in vars(primitives).items():
        if name.startswith("_") or isinstance(value, types.ModuleType):
            continue
        made = value if inspect.isclass(value) else inspect.get_annotations(value, eval_str=True)["return"]
        found[headings[made.role]].append(name) if issubclass(made, Declared) else None
    return {heading: tuple(sorted(names)) for heading, names in found.items()}


@dataclass(frozen=True)
class Page:
    """A page of the reference.

    Args:
        name: of its file.
        module: in which the names are.
        about: who needs it.
        names: under their headings.
    """

    name: str
    module: str
    about: str
    names: Mapping[str, tuple[str, ...]]

    def text(self) -> str:
        """The page, whose directives Sphinx fills in from the docstrings."""
        parts = [f"# {self.module}\n\n{self.about}\n"]
        for heading, names in self.names.items():
            made = "\n".join(_directive(self.module, name) for name in names)
            parts.append(
                f"## {heading}\n\n```{{eval-rst}}\n.. py:currentmodule:: {self.module}\n\n{made}\n```\n"
            )
        return "\n".join(parts)


def pages() -> tuple[Page, ...]:
    """All pages of the reference, in their order."""
    return (
        Page("relaxcomm", "relaxcomm", "What a training script and a composition need.", USERS),
        Page(
            "primitives",
            "relaxcomm.primitives",
            "What rules are made of, by the names that YAML has, too.",
            _by_role(),
        ),
        Page("plugin", "relaxcomm.plugin", "What authors of primitives need.", AUTHORS),
        Page(
            "integrations",
            "relaxcomm.integrations",
            "What a script imports that trains in another framework.",
            INTEGRATIONS,
        ),
    )


def _directive(module: str, name: str) -> str:
    """What has Sphinx write of a name; a constant's docstring stands below it in the source."""
    within, _, last = name.rpartition(".")
    if module == "relaxcomm.integrations" and within:
        kind = "class" if last[0].isupper() else "function"
        return f".. auto{kind}:: {module}.{name}\n"
    target = getattr(importlib.import_module(f"{module}.{within}".rstrip(".")), last)
    if inspect.isclass(target):
        kind = "exception" if issubclass(target, BaseException) else "class"
    elif inspect.isfunction(target):
        kind = "function"
    else:
        value = f"\n   :value: {target!r}" if isinstance(target, str | int) else ""
        return f".. py:data:: {name}{value}\n\n   {constant_text(module, name)}\n"
    inherited = "   :inherited-members:\n" if name in IN_PARTS else ""
    return f".. auto{kind}:: {module}.{name}\n{inherited}"


def constant_text(module: str, name: str) -> str:
    """The docstring below a constant, in the module that defines it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    source = Path(str(spec.origin))
    stub = source.with_suffix(".pyi")  # of a module whose names are imported when they are used first
    body = ast.parse((stub if stub.exists() else source).read_text(encoding="utf-8")).body
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return constant_text(f"{module}.{node.module}" if node.level else str(node.module), name)
        if name in _assigned(node) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return " ".join(str(after.value.value).split())
    raise ValueError(f"{module}.{name} has no docstring below it; write one")


def _assigned(node: ast.stmt) -> Iterator[str]:
    """The names that a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    yield from (one.id for one in targets if isinstance(one, ast.Name))
