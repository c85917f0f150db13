"""A host's process: takes trials as JSON lines on standard input and answers each with one line."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.lab.links import own_link
from benchmarks.lab.trial import Job, run


def main() -> None:
    torch.set_num_threads(1)
    answers = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    folder = Path(os.environ["LAB_FOLDER"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    for line in sys.stdin:
        job = Job(**json.loads(line))
        print(json.dumps({"job": asdict(job), **run(job, folder, own_link())}), file=answers, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
