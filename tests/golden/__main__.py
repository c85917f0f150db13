"""`python -m tests.golden` compares bit for bit with what this machine recorded with `--record`."""

from __future__ import annotations

import sys
import warnings

from tests.golden.recorded import ALL, differences, record

warnings.simplefilter("ignore")
if "--record" in sys.argv:
    record()
    print(f"recorded {len(ALL)} trajectories")
else:
    found = []
    for line in differences():
        print(line, flush=True)
        found.append(line)
    print(f"{len(ALL)} trajectories, {len(found)} difference(s)")
    sys.exit(bool(found))
