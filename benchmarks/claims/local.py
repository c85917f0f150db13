"""Claims about local steps, rounds, outer optimizers and batches that grow."""

from __future__ import annotations

from typing import Any

from benchmarks.claims.claim import BSP, Claim, Outcome, above, at_least, named
from benchmarks.claims.training import Trial

PERIOD = 8
NO_LABEL, BY_LABEL = "digits", "digits by label"


def _average(steps: int, first: int, last: int | None) -> dict[str, Any]:
    trigger = {"every": {"steps": steps}}
    return {"trigger": trigger, "payload": "parameters", "exchange": "all_reduce", "active": [first, last]}


def _growing_period(change: int) -> dict[str, Any]:
    """A schedule of H: often at first, and then seldom."""
    return {"rules": [_average(PERIOD, 0, change), _average(4 * PERIOD, change, None)]}


def _adaptive_claim(setting: str, small: int, change: int) -> Claim:
    """Batches from `small` to four times that, beside a period that grows after `change` steps instead."""
    large = 4 * small
    local = named("local_sgd", steps=PERIOD)
    grown = named("adaptive_local_sgd", steps=PERIOD, tolerance=0.8, max_batch_size=large)
    adaptive = f"adaptive {small} to {large}"

    def holds(found: Outcome, margin: float) -> bool:
        """As good as the better of the fixed batches, with at most half of the small one's exchanges."""
        fixed = max(found[f"fixed {size}"]["quality"] for size in (small, large))
        few = 0.5 * found[f"fixed {small}"]["exchanges"]
        return found[adaptive]["quality"] >= fixed - margin and found[adaptive]["exchanges"] <= few

    return Claim(
        name="adaptive_batches",
        paper="Lau 2024",
        says="batches that grow reach the quality of fixed ones with the exchanges of large ones",
        settings=(setting,),
        rows={
            f"fixed {small}": Trial(algorithm=local, batch_size=small),
            f"fixed {large}": Trial(algorithm=local, batch_size=large),
            adaptive: Trial(algorithm=grown, batch_size=small),
            f"fixed {small}, H {PERIOD} then {4 * PERIOD}": Trial(
                algorithm=_growing_period(change), batch_size=small
            ),
        },
        holds=holds,
    )


CLAIMS = (
    Claim(
        name="epochs_save_rounds",
        paper="McMahan 2017",
        says="FedAvg needs at most half the rounds with 5 local epochs of those with 1",
        settings=(NO_LABEL,),
        rows={f"{n} epochs": Trial(algorithm=named("fedavg", epochs=n)) for n in (1, 5)},
        holds=lambda found, margin: (
            found["5 epochs"]["exchanges_to_target"] <= 0.5 * found["1 epochs"]["exchanges_to_target"]
        ),
    ),
    Claim(
        name="proximal_helps",
        paper="FedProx 2020",
        says="a proximal term helps where clients' data differ",
        settings=(BY_LABEL,),
        rows={
            f"mu {mu:g}": Trial(algorithm=named("fedavg", epochs=5, proximal=mu), optimizer="plain")
            for mu in (0.0, 0.1, 1.0)
        },
        holds=lambda found, margin: (
            max(found["mu 0.1"]["quality"], found["mu 1"]["quality"]) > found["mu 0"]["quality"] + margin
        ),
    ),
    Claim(
        name="post_local_is_better",
        paper="Lin 2020",
        says="post-local SGD ends better than local SGD with the same period",
        settings=(BY_LABEL, "charlm"),
        rows={
            "local": Trial(algorithm=named("local_sgd", steps=16)),
            "post-local": Trial(algorithm=named("post_local_sgd", steps=16, after_steps=96)),
        },
        holds=above("post-local", "local"),
    ),
    Claim(
        name="slow_momentum_helps",
        paper="SlowMo 2020",
        says="slow momentum improves local SGD with the same period",
        settings=(BY_LABEL, "charlm"),
        rows={
            "local": Trial(algorithm=named("local_sgd", steps=12)),
            "slowmo": Trial(algorithm=named("slowmo", steps=12)),
        },
        holds=above("slowmo", "local"),
    ),
    Claim(
        name="outer_momentum_replaces_exchanges",
        paper="DiLoCo 2023",
        says="DiLoCo is as good as synchronous training with a fraction of the exchanges",
        settings=(NO_LABEL, "charlm"),
        rows={f"steps {n}": Trial(algorithm=named("diloco", steps=n)) for n in (8, 32)},
        holds=at_least("steps 32", BSP),
    ),
    _adaptive_claim(NO_LABEL, 8, change=64),
    _adaptive_claim(BY_LABEL, 16, change=64),
    _adaptive_claim("charlm", 8, change=128),
    Claim(
        name="staleness_hurts_momentum",
        paper="Dai 2018",
        says="staleness costs SGD with momentum more than plain SGD (first worker 5 times slow)",
        settings=(NO_LABEL, "charlm"),
        rows={
            f"{kind}, staleness {s}": Trial(algorithm=named("ssp", staleness=s), optimizer=kind, uneven=True)
            for kind in ("momentum", "plain")
            for s in (0, 16)
        },
        holds=lambda found, margin: (
            found["momentum, staleness 0"]["quality"] - found["momentum, staleness 16"]["quality"]
            > found["plain, staleness 0"]["quality"] - found["plain, staleness 16"]["quality"] + margin
        ),
    ),
)
