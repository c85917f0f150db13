"""What others keep beside checkpoints is neither read, counted nor deleted."""

from __future__ import annotations

import torch

import relaxcomm
from relaxcomm.checkpoint import load, save


def attached():
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def trained(steps):
        for _ in range(steps):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()

    return relaxcomm.attach(model, optimizer, "bsp"), trained


def test_folders_files_and_links_of_others_stay(tmp_path):
    app = tmp_path / "webapp"
    app.mkdir()
    (app / "manifest.json").write_text('{"name": "app"}')
    for name in ("step-100", "notes.partial", "step-00000007"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious.pt").write_text("mine")
    engine, trained = attached()
    assert load(engine, tmp_path) is None  # there is none yet
    saved = []
    for _ in range(4):
        trained(2)
        saved.append(save(engine, tmp_path, keep=2))
        if len(saved) == 1:
            (tmp_path / "latest").symlink_to(saved[0])
            (tmp_path / "step-00009999").symlink_to(saved[0])
    engine.close()
    left = sorted(one.name for one in tmp_path.iterdir())
    assert left == sorted(
        ["webapp", "step-100", "notes.partial", "step-00000007", "latest", "step-00009999"]
        + [one.name for one in saved[-2:]]
    )
    assert (tmp_path / "notes.partial" / "precious.pt").read_text() == "mine"


def test_a_copy_under_another_name_stays_and_can_be_loaded(tmp_path):
    engine, trained = attached()
    first = save(engine, tmp_path / "saved")
    best = first.rename(first.with_name("best"))
    for _ in range(3):
        trained(1)
        newest = save(engine, tmp_path / "saved", keep=1)
    assert {one.name for one in (tmp_path / "saved").iterdir()} == {"best", newest.name}
    assert load(engine, tmp_path / "saved") == newest
    assert load(engine, best) == best
    engine.close()
