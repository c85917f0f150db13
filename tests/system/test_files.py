"""Files are written whole or not at all, and a full disk is named with its file."""

import errno
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from relaxcomm import ConfigError, MetricsWarning, RelaxcommError
from relaxcomm.monitoring.run_log import RunLog
from relaxcomm.system.files import check_folder, write_whole


def test_a_file_and_its_folder_are_made(tmp_path):
    path = tmp_path / "new" / "folder" / "a.txt"
    assert write_whole(path, "ä") == path
    assert path.read_bytes() == "ä".encode()
    assert write_whole(path, b"other").read_bytes() == b"other"
    assert [one.name for one in path.parent.iterdir()] == ["a.txt"]


def test_whoever_reads_sees_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_whole(path, "old")
    replace = os.replace

    def look(source, target):
        assert path.read_text() == "old"
        assert Path(source).read_text() == "new"
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    write_whole(path, "new")
    assert path.read_text() == "new"


def test_a_full_disk_is_named_with_its_file_and_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_whole(path, "old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RelaxcommError, match=r"result\.json \(3 bytes\): No space left on device"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.root
def test_a_disk_that_is_really_full(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        check_folder(tmp_path)
        with pytest.raises(RelaxcommError, match="No space left on device"):
            write_whole(tmp_path / "large", b"x" * 200_000)
        assert list(tmp_path.iterdir()) == []
        with (tmp_path / "fill").open("wb", buffering=0) as fill, suppress(OSError):
            while True:
                fill.write(b"x" * 512)
        with pytest.raises(ConfigError, match=r"output: .*: No space left on device; give another"):
            check_folder(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(ConfigError, match="output: cannot write to the folder"):
            check_folder(folder)
    check_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def _logged() -> RunLog:
    log = RunLog(Path("/dev/full"), limit_bytes=1 << 20)
    log.write({"time": 1})
    log.close({"closed": 2})
    return log


def test_a_run_log_on_a_full_disk_is_named_and_keeps_nothing_in_memory():
    with pytest.warns(MetricsWarning, match="the run log /dev/full ends here: No space left on device"):
        log = _logged()
    log.write({"time": 3})
    assert not log._lines
