"""Tries the claims of the papers.

    python -m benchmarks.claims [--seeds 3] [--only NAME …] [--settings NAME …] [--processes 2]

Writes `benchmarks/results/claims-DATE.json`, with every run, and the table beside it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.claims.catalogue import CLAIMS
from benchmarks.claims.settings import SETTINGS
from benchmarks.claims.table import markdown
from benchmarks.claims.tried import try_all


def main() -> None:
    """Runs setting by setting, so that rows which claims share are run once."""
    names = list(dict.fromkeys(claim.name for claim in CLAIMS))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=report.positive(int), default=3)
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--processes", type=report.positive(int), default=2)
    parser.add_argument("--output", type=Path, default=report.dated("claims"))
    arguments = parser.parse_args()
    content: dict[str, Any] = {
        "environment": report.environment(),
        "arguments": {name: value for name, value in vars(arguments).items() if name != "output"},
        "settings": {},
        "results": [],
    }
    begin = time.monotonic()
    with ProcessPoolExecutor(arguments.processes, multiprocessing.get_context("spawn")) as pool:
        for setting in arguments.settings:
            content["settings"][setting] = SETTINGS[setting].as_json()
            content["results"] += _tried(pool, setting, arguments.only, arguments.seeds)
            content["results"].sort(key=lambda result: names.index(result["claim"]))
            content["seconds"] = time.monotonic() - begin
            report.write_result(arguments.output, content)
            arguments.output.with_suffix(".md").write_text(markdown(content))


def _tried(pool: Executor, setting: str, names: list[str], seeds: int) -> list[dict[str, Any]]:
    """What came of all claims in a setting."""
    claims = [one for one in CLAIMS if one.name in names and setting in one.settings]
    tried = try_all(pool, setting, (trial for claim in claims for trial in claim.trials().values()), seeds)
    results = []
    for claim in claims:
        outcome = {label: tried[trial.key] for label, trial in claim.trials().items()}
        verdict = claim.verdict(setting, outcome)
        print(f"{setting}: {claim.says}: {verdict}", flush=True)
        results.append(
            {
                "claim": claim.name,
                "paper": claim.paper,
                "says": claim.says,
                "setting": setting,
                "verdict": verdict,
                "rows": {label: one.as_json() for label, one in outcome.items()},
            }
        )
    return results


if __name__ == "__main__":
    main()
