"""Claims of Tyagi and Swany, "Accelerating Distributed ML Training via Selective Synchronization" (2023)."""

from __future__ import annotations

from benchmarks.claims.claim import Claim, above, at_least, named
from benchmarks.claims.training import Trial

PAPER = "SelSync 2023"
THRESHOLDS = (0.0, 0.1, 0.3, 1.0)


def _rises(found: object, margin: float) -> bool:
    lssr = [found[f"threshold {t:g}"]["lssr"] for t in THRESHOLDS]  # type: ignore[index]  # an Outcome
    return lssr == sorted(lssr)


CLAIMS = (
    Claim(
        name="lssr_rises",
        paper=PAPER,
        says="the share of local steps (LSSR) rises with the threshold",
        settings=("digits by label", "charlm", "glyphs"),
        rows={f"threshold {t:g}": Trial(algorithm=named("selsync", threshold=t)) for t in THRESHOLDS},
        holds=_rises,
    ),
    Claim(
        name="parameters_beat_gradients",
        paper=PAPER,
        says="aggregating parameters is at least as good as aggregating gradients",
        settings=("digits by label", "charlm", "glyphs"),
        rows={
            "parameters": Trial(algorithm=named("selsync", threshold=0.3)),
            "gradients": Trial(algorithm=named("selsync", threshold=0.3, aggregate="gradients")),
        },
        holds=at_least("parameters", "gradients"),
    ),
    Claim(
        name="seldp_beats_disjoint",
        paper=PAPER,
        says="reading all data in circular order (SelDP) beats disjoint shards under long local phases",
        settings=("digits", "digits by label", "charlm"),
        rows={
            kind: Trial(algorithm=named("local_sgd", steps=64), data={"partition": kind})
            for kind in ("seldp", "disjoint", "by_label")
        },
        holds=lambda found, margin: (
            above("seldp", "disjoint")(found, margin) and above("seldp", "by_label")(found, margin)
        ),
    ),
    Claim(
        name="injection_helps",
        paper=PAPER,
        says="sharing part of the batches (data injection) helps where each worker has its own labels",
        settings=("digits by label",),
        rows={
            "without": Trial(algorithm=named("local_sgd", steps=32)),
            "with": Trial(
                algorithm=named("local_sgd", steps=32), data={"injection": {"alpha": 0.5, "beta": 0.5}}
            ),
        },
        holds=above("with", "without"),
    ),
)
