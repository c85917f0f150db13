"""Pictures in files: their kinds, and what is told where none can be drawn."""

import importlib.util
from pathlib import Path

import pytest

from relaxcomm.cli.pictures import check_picture, new_figure, write_picture
from relaxcomm.errors import ConfigError

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_the_ending_names_the_kind(tmp_path, name, begins):
    check_picture("--plot", Path(name))
    figure = new_figure(2, 2)
    figure.subplots().plot([1, 2])
    written = write_picture(figure, tmp_path / "folder" / name)
    assert written.read_bytes().startswith(begins)


@pytest.mark.parametrize("name", ["pic", "pic.doc", "pic.PNG", ".png"])
def test_another_ending_is_refused(name):
    with pytest.raises(ConfigError, match=rf"--output {name}: name a file that ends in \.png, \.svg, \.pdf"):
        check_picture("--output", Path(name))


def test_what_draws_may_be_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--plot draws with matplotlib; .*pip install 'relaxcomm\[demo\]'"):
        check_picture("--plot", Path("a.png"))
