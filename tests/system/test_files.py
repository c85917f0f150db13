"""Files are written whole or not at all, and a full disk is named with its file."""

import errno
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from relaxcomm import ConfigError, MetricsWarning, RelaxcommError
from relaxcomm.monitoring.run_log import RunLog
from relaxcomm.system.files import check_folder, read_at_most, write_whole


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
        check_folder("output", tmp_path)
        with pytest.raises(RelaxcommError, match="No space left on device"):
            write_whole(tmp_path / "large", b"x" * 200_000)
        assert list(tmp_path.iterdir()) == []
        with (tmp_path / "fill").open("wb", buffering=0) as fill, suppress(OSError):
            while True:
                fill.write(b"x" * 512)
        with pytest.raises(ConfigError, match=r"output: .*: No space left on device; give another"):
            check_folder("output", tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(ConfigError, match="output: cannot write to the folder"):
            check_folder("output", folder)
    check_folder("output", tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    with pytest.raises(RelaxcommError, match=r"cannot write .*/file/below \(4 bytes\): "):
        write_whole(tmp_path / "file" / "below", "text")


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


def test_a_run_log_that_cannot_write_a_value_ends_with_one_warning(tmp_path):
    log = RunLog(tmp_path / "a.jsonl", limit_bytes=1 << 20)

    def end() -> None:
        log.write({"time": 1})
        log.write({"time": object()})
        log.close({"closed": 2})

    with pytest.warns(MetricsWarning, match=r"a\.jsonl ends here: TypeError: .* training goes on") as caught:
        end()
    assert len(caught) == 1
    assert not log._thread.is_alive()


def test_a_run_log_is_thinned_whatever_stood_in_its_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xff\xfe not ours\n")
    log = RunLog(path, limit_bytes=16_384)
    for step in range(1_000):
        log.write({"time": step, "text": "x" * 50})
    log.close({"closed": 1})
    lines = path.read_bytes().splitlines()
    assert lines[0] == b"\xff\xfe not ours"
    assert lines[-1] == b'{"closed": 1}'
    assert b'"time": 999' in lines[-2]
    assert path.stat().st_size < 16_384
    assert [one.name for one in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(("umask", "file", "folder"), [(0o000, 0o664, 0o775), (0o077, 0o600, 0o700)])
def test_permissions_follow_the_umask_and_never_let_all_write(tmp_path, umask, file, folder):
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "a" / "b" / "result.json", "x")
        RunLog(tmp_path / "c" / "log.jsonl", limit_bytes=1 << 20).close({"closed": 1})
        check_folder("output", tmp_path / "d" / "e")
    finally:
        os.umask(before)
    for one in ("a/b/result.json", "c/log.jsonl"):
        assert (tmp_path / one).stat().st_mode & 0o777 == file
    for one in ("a", "a/b", "c", "d/e"):
        assert (tmp_path / one).stat().st_mode & 0o777 == folder


def test_a_link_that_somebody_planted_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "victim").write_text("untouched")
    monkeypatch.setattr("secrets.token_hex", lambda count: "known")
    (tmp_path / ".result.json.known").symlink_to(tmp_path / "victim")
    with pytest.raises(RelaxcommError, match="File exists"):
        write_whole(tmp_path / "result.json", "x")
    assert (tmp_path / "victim").read_text() == "untouched"


def test_what_has_no_end_is_not_read():
    with pytest.raises(
        ConfigError, match="the file /dev/zero has more than 100 bytes, which is all that is read"
    ):
        read_at_most(Path("/dev/zero"), 100, "the file")


def test_a_folder_with_a_zero_byte_is_refused():
    with pytest.raises(ConfigError, match=r"output: cannot write to the folder .*: embedded null byte; give"):
        check_folder("output", "a\0b")
