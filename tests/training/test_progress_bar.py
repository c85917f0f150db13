"""A run's progress, on a terminal and elsewhere."""

import re
from io import StringIO

import pytest
import torch
from rich.console import Console

from relaxcomm.training import progress_bar
from relaxcomm.training.progress_bar import Bar, Lines


def test_plain_progress_is_sparse_and_ends_with_the_last_step(capsys):
    lines = Lines("bsp", 200, "accuracy", {"bytes_sent": 4_000_000, "lssr": 0.875})
    for step in range(1, 201):
        lines.step(step, torch.tensor(0.5))
        if step % 5 == 0:
            lines.evaluated(step, 0.25, step / 100)
    shown = capsys.readouterr().err.splitlines()
    assert 5 < len(shown) < 15
    assert (
        shown[-1]
        == "bsp  step 200/200  loss 0.5000  accuracy 0.2500  100 step/s  rank 0 sent 4 MB  88% local"
    )


def test_no_more_steps_are_shown_than_there_are(capsys):
    """Where ranks have changed the number is an estimate until the next epoch begins."""
    counted = {"bytes_sent": 0, "lssr": 0.0}
    Lines("bsp", 117, "accuracy", counted).evaluated(118, 0.5, 1.0)
    assert "step 118/118" in capsys.readouterr().err
    screen = StringIO()
    bar = Bar("bsp", 117, "accuracy", counted, Console(file=screen, force_terminal=True, width=80))
    bar.title = "bsp, now local_sgd"
    bar.evaluated(118, 0.5, 1.0)
    bar.close()
    assert "118/118" in screen.getvalue()
    assert "bsp, now local_sgd" in screen.getvalue()


@pytest.mark.parametrize(
    ("seconds", "speed"), [(0.25, "4 step/s"), (8.0, "0.12 step/s"), (0.0005, "2,000 step/s")]
)
def test_a_bar_tells_loss_speed_bytes_local_steps_and_the_measure_in_80_columns(seconds, speed, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_bar.time, "perf_counter", lambda: now[0])
    screen = StringIO()
    counted = {"bytes_sent": 123_456_789, "lssr": 0.875}
    console = Console(file=screen, force_terminal=True, width=80)
    bar = Bar("hierarchical_local_sgd", 20_000, "accuracy", counted, console)
    bar.evaluated(19_999, 0.25, 1.0)
    now[0] += seconds
    bar.step(20_000, torch.tensor(0.5))
    bar.close()
    lines = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", screen.getvalue()).splitlines()
    assert lines[-1].strip() == f"loss 0.5000  {speed}  rank 0 sent 123 MB  88% local  accuracy 0.2500"
    assert "20000/20000" in screen.getvalue()
