"""Tries the claims of the papers.

    python -m benchmarks.claims [--seeds 3] [--only NAME …] [--settings NAME …] [--processes 2] [--into FILE]

Writes `benchmarks/results/claims-DATE.json`, with every run, and the table beside it. A file that is named by
`--into` keeps what it holds of other settings.
"""

from __future__ import annotations

import argparse
import json
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
    parser.add_argument("--into", type=Path)
    arguments = parser.parse_args()
    path: Path = arguments.into or report.dated("claims")
    content: dict[str, Any] = {"settings": {}, "results": []}
    if path.exists():
        content = json.loads(path.read_text())
    with ProcessPoolExecutor(arguments.processes, multiprocessing.get_context("spawn")) as pool:
        for setting in arguments.settings:
            environment, begin = report.environment(), time.monotonic()
            results = _tried(pool, setting, arguments.only, arguments.seeds)
            content["settings"][setting] = {
                **SETTINGS[setting].as_json(),
                "seeds": arguments.seeds,
                "seconds": time.monotonic() - begin,
                "environment": environment,
            }
            content["results"] = [one for one in content["results"] if one["setting"] != setting] + results
            content["results"].sort(key=lambda result: names.index(result["claim"]))
            report.write_result(path, content)
            path.with_suffix(".md").write_text(markdown(content))


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
