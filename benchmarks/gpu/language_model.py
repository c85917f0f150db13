"""A language model of 100 million parameters on 4 ranks of one GPU: tokens a second, bytes, what it learns.

    python -m benchmarks.gpu.language_model
    python3 -m benchmarks.gpu.bare build/gpu-bundle benchmarks.gpu.language_model   # without a network
    python -m benchmarks.gpu.language_model --device cpu --ranks 2 --width 32 --layers 1 --context 32

Text is Python's own library (the task `charlm`). Every contender begins with the same parameters and sees the
same text in the same order, one after the other in processes of its own. Rank 0's own model is judged on text
that was held out, at steps in which periodic contenders have just averaged; that time is not counted. Ranks
talk over the loopback interface, whose counter tells the bytes.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.language_trial import Trial, train
from benchmarks.gpu.ranks import run_on
from benchmarks.report import Report, make_parser, positive, why

TORCHFT = "torchft_diloco"


def contenders(period: int) -> dict[str, Mapping[str, Any]]:
    """Each with the arguments that it is made with; torchft's only where it is installed.

    Args:
        period: local steps between two averagings, of those that have one.
    """
    algorithms: dict[str, Any] = {
        "diloco": {"name": "diloco", "steps": period},
        "streaming_diloco": {"name": "streaming_diloco", "steps": period, "delay": max(1, period // 10)},
        "selsync": {"name": "selsync"},
        "gaussiank_sgd": {"name": "gaussiank_sgd", "density": 0.01},
    }
    found: dict[str, Mapping[str, Any]] = {"ddp": {}}
    found |= {name: {"algorithm": algorithm} for name, algorithm in algorithms.items()}
    if importlib.util.find_spec("torchft") is not None:
        found[TORCHFT] = {"steps": period}
    return found


def row(name: str, record: Mapping[str, Any]) -> str:
    """One line of the table."""
    if "failed" in record:
        return f"{name:18} failed: {record['failed'].strip().splitlines()[-1][:160]}"
    last = record["curve"][-1]
    return (
        f"{name:18} {record['tokens_a_second']:>11,.0f} tokens/s "
        f"{record['bytes_a_step'] / 1e6:>9.2f} MB a step "
        f"{last['bits_per_character']:.3f} bits after {last['tokens']:,} tokens, {last['seconds']:.1f} s"
    )


def main() -> None:
    parser = make_parser(
        *("language-model", __doc__),
        **{"ranks": 4, "width": 768, "layers": 15, "context": 256, "batch": 16, "steps": 120, "period": 20},
        **{"limit_seconds": 520},
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default cuda")
    parser.add_argument("--learning-rate", type=positive(float), default=3e-4, help="of AdamW; default 3e-4")
    parser.add_argument("--only", nargs="+", choices=contenders(1), help="some contenders; default all")
    arguments = parser.parse_args()
    trial = Trial(
        **{name: getattr(arguments, name) for name in ("width", "layers", "context", "batch", "steps")},
        period=arguments.period,
        learning_rate=arguments.learning_rate,
    )
    chosen = {n: s for n, s in contenders(arguments.period).items() if n in (arguments.only or (n,))}
    report, records = Report(arguments), {}
    deadline = time.monotonic() + arguments.limit_seconds
    for number, (name, settings) in enumerate(chosen.items()):
        share = (deadline - time.monotonic()) / (len(chosen) - number)  # what one leaves, the next ones have
        try:
            records[name] = run_on(
                *(arguments.device, arguments.ranks, share, train),
                *(name, dict(settings), trial, 0.5 * share),
            )
        except Exception as error:  # of a rank, with its traceback; the others still take part
            records[name] = {"failed": why(error)}
        report.write(records)
        print(row(name, records[name]), flush=True)
    report.close(records)


if __name__ == "__main__":
    main()
