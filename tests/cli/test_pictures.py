"""Pictures in files: their kinds, what tells series apart, and what is told where none can be drawn."""

import importlib.util
import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from relaxcomm.cli import plan_plot
from relaxcomm.cli.pictures import (
    as_label,
    check_picture,
    legend_below,
    make_log,
    new_figure,
    series_style,
    write_picture,
)
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


def test_a_folder_is_no_picture(tmp_path):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(ConfigError, match=r"--plot .*a\.png is a folder; name a file"):
        check_picture("--plot", tmp_path / "a.png")


def test_two_series_of_one_name_have_an_entry_each():
    figure = new_figure(7, 4.5)
    for axes in figure.subplots(1, 2):
        for index in range(2):
            axes.plot([1, 2], [index, 1], label="bsp", **series_style(index))
    legend_below(figure)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["bsp", "bsp"]


def test_panels_of_pilots_count_their_workers(monkeypatch):
    monkeypatch.setattr(plan_plot, "write_picture", lambda figure, path: figure)
    result = SimpleNamespace(metric="accuracy", history=[SimpleNamespace(seconds=1.0, measure=0.5)])
    pilots = [SimpleNamespace(name="bsp", workers=workers, results=(result,)) for workers in (1, 2)]
    figure = plan_plot.plot_pilots(pilots, Path("pilots.png"))
    assert [axes.get_title() for axes in figure.axes] == ["1 worker", "2 workers"]


def test_no_two_series_look_alike():
    styles = [series_style(index) for index in range(64)]
    assert len({(one["color"], one["marker"]) for one in styles}) == 64


@pytest.mark.parametrize("names", [["a"], [f"low_precision_decentralized_{index}" for index in range(50)]])
def test_a_legend_hides_no_curve_and_is_whole(names):
    figure = new_figure(7, 4.5)
    for axes in figure.subplots(1, 2):
        for index, name in enumerate(names):
            axes.plot([1, 2], [index, 1], label=name, **series_style(index))
    legend_below(figure)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names, "once, not once an axis"
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0
    for axes in figure.axes:
        assert box.y1 < axes.get_tightbbox().y0
        assert axes.bbox.height > 4 * figure.dpi


@pytest.mark.parametrize("name", ["_mine", "cost $\\alpha_$", "top $5, 10$"])
def test_a_name_is_shown_as_it_is(name):
    figure = new_figure(4, 3)
    figure.subplots().plot([1, 2], label=as_label(name), **series_style(0))
    legend_below(figure)
    figure.draw_without_rendering()
    (text,) = figure.legends[0].get_texts()
    assert (text.get_text().lstrip("\u200b"), text._preprocess_math(text.get_text())[1]) == (
        name.replace("$", r"\$"),
        False,
    )


def test_what_lies_at_zero_is_nowhere_on_a_logarithmic_axis():
    figure = new_figure(4, 3)
    axes = figure.subplots()
    (line,) = axes.plot([0, 1, 10], [0.1, 0.5, 0.9])
    make_log(axes, "x")
    places = axes.transData.transform(line.get_xydata())
    assert not np.isfinite(places[0, 0])
    assert np.isfinite(places[1:]).all()


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([0.36, 0.5], {"0.4", "0.5"}),
        ([0.36, 1.1], {"0.4", "0.6", "1"}),
        ([0.01, 0.34], {"0.01", "0.02", "0.05", "0.1", "0.2"}),
        ([0.1, 3000], {"0.1", "1", "10", "100", "1000"}),
    ],
)
def test_ticks_of_logarithms_are_plain_numbers_beside_each_other(values, wanted):
    figure = new_figure(5, 3)
    axes = figure.subplots()
    axes.plot(values, values)
    make_log(axes, "x")
    make_log(axes, "y")
    figure.draw_without_rendering()
    for axis in (axes.xaxis, axes.yaxis):
        labels = [label for which in ("major", "minor") for label in axis.get_ticklabels(which=which)]
        seen = [label for label in labels if label.get_text()]
        assert wanted <= {label.get_text() for label in seen}
        boxes = [label.get_window_extent() for label in seen]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_what_draws_may_be_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--plot draws with matplotlib; .*pip install 'relaxcomm\[demo\]'"):
        check_picture("--plot", Path("a.png"))
