"""A job on local workers: what those who join it from another folder are told."""

from __future__ import annotations

from types import SimpleNamespace

import networkx
import pytest

from relaxcomm import config
from relaxcomm.cli import local_run, train
from relaxcomm.cli.job import Job
from relaxcomm.config.origin import Origin


def test_paths_are_whole_for_who_joins_from_another_folder(tmp_path, monkeypatch):
    told = {}
    monkeypatch.setattr(local_run, "launch_elastic", lambda *args, **options: told.update(options))
    monkeypatch.chdir(tmp_path)
    networkx.write_edgelist(networkx.complete_graph(2), "sites.edgelist")
    values = {
        "algorithm": "d_psgd",
        "task": "quadratic",
        "topology": {"file": {"path": "sites.edgelist"}},
        "membership": {"elastic": True, "quorum": 2, "secret": {"file": "secret"}},
        "checkpoint": {"path": "saved", "every_steps": 5},
        "output": "results",
    }
    local_run.run(Job(values, Origin("a test")), config.load(values))
    assert told["configuration"] == {
        **values,
        "topology": {"file": {"path": f"{tmp_path}/sites.edgelist"}},
        "membership": {"elastic": True, "quorum": 2, "secret": {"file": f"{tmp_path}/secret"}},
        "checkpoint": {"path": f"{tmp_path}/saved", "every_steps": 5},
        "output": f"{tmp_path}/results",
    }


def test_a_result_is_written_before_it_is_shown(tmp_path, monkeypatch):
    """Whoever reads what is printed may be gone by then."""

    def gone(results):
        raise BrokenPipeError

    monkeypatch.setattr(train, "show", gone)
    written = []
    result = SimpleNamespace(write=lambda folder, facts: written.append(folder))
    with pytest.raises(BrokenPipeError):
        train.finish(config.load({"algorithm": "bsp", "task": "quadratic", "output": str(tmp_path)}), result)
    assert [*map(str, written)] == [str(tmp_path)]
