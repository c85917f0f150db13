"""Claims about short messages and about graphs of neighbours."""

from __future__ import annotations

from typing import Any

from benchmarks.claims.claim import BSP, Claim, above, at_least, named
from benchmarks.claims.training import Trial

HARD = ("digits by label", "charlm")


def _as_good_as_bsp(name: str, paper: str, says: str, row: str, algorithm: Any, **more: Any) -> Claim:
    rows = {row: Trial(algorithm=algorithm, **more)}
    return Claim(name=name, paper=paper, says=says, settings=HARD, rows=rows, holds=at_least(row, BSP))


CLAIMS = (
    Claim(
        name="gaussiank_is_dense",
        paper="Shi 2019",
        says="GaussianK is as good as dense SGD at density 0.001",
        settings=HARD,
        rows={
            **{f"gaussian {d:g}": Trial(algorithm=named("gaussiank_sgd", density=d)) for d in (0.01, 0.001)},
            **{f"exact {d:g}": Trial(algorithm=named("topk_sgd", density=d)) for d in (0.01, 0.001)},
        },
        holds=at_least("gaussian 0.001", BSP),
    ),
    Claim(
        name="error_feedback_fixes_signs",
        paper="Karimireddy 2019",
        says="error feedback makes sign compression as good as dense SGD, which signs alone are not",
        settings=HARD,
        rows={
            "ef_signsgd": Trial(algorithm="ef_signsgd"),
            "signsgd": Trial(algorithm="signsgd", optimizer="signs"),
        },
        holds=lambda found, margin: (
            at_least("ef_signsgd", BSP)(found, margin) and above("ef_signsgd", "signsgd")(found, margin)
        ),
    ),
    _as_good_as_bsp(
        "powersgd_is_dense", "Vogels 2019", "rank 2 is as good as dense SGD", "rank 2", "powersgd"
    ),
    _as_good_as_bsp("qsgd_is_dense", "Alistarh 2017", "4 bits an entry are as good as 32", "qsgd", "qsgd"),
    _as_good_as_bsp(
        "terngrad_is_dense", "Wen 2017", "three levels are as good as 32 bits", "terngrad", "terngrad"
    ),
    _as_good_as_bsp(
        "bytegrad_is_dense", "Bagua 2021", "8 bits an entry are as good as 32", "bytegrad", "bytegrad"
    ),
    Claim(
        name="neighbours_are_enough",
        paper="Lian 2017",
        says="mixing with the neighbours on a ring is as good as averaging over all",
        settings=HARD,
        rows={"d_psgd": Trial(algorithm="d_psgd", more={"topology": "ring"})},
        holds=at_least("d_psgd", BSP),
    ),
    Claim(
        name="one_peer_beats_ring",
        paper="Ying 2021",
        says="one peer a step, 1, 2, 4 … places away, is at least as good as a ring",
        settings=HARD,
        rows={
            "one peer": Trial(algorithm="one_peer_exponential"),
            "ring": Trial(algorithm="d_psgd", more={"topology": "ring"}),
        },
        holds=at_least("one peer", "ring"),
    ),
    Claim(
        name="choco_is_gossip",
        paper="Koloskova 2019",
        says="gossip of compressed differences is as good as gossip in full precision",
        settings=HARD,
        rows={
            "choco_sgd": Trial(algorithm="choco_sgd", more={"topology": "ring"}),
            "d_psgd": Trial(algorithm="d_psgd", more={"topology": "ring"}),
        },
        holds=at_least("choco_sgd", "d_psgd"),
    ),
)
