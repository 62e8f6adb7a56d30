"""Whole lines or none, one writer, and nobody's file is spoilt."""

import errno
import fcntl
import os
import resource
from pathlib import Path

import pytest

from acpo.compare import store
from acpo.errors import ACPOError
from acpo.linefile import LineFile, write_whole

FIRST = b'{"format": 1}\n'


def refuse(text):
    raise ACPOError("not ours")


@pytest.mark.parametrize("cut", range(len(FIRST)))
def test_a_file_cut_off_in_its_first_line_begins_again(tmp_path, cut):
    path = tmp_path / "lines"
    path.write_bytes(FIRST[:cut])
    with LineFile(path) as lines:
        assert lines.resume(FIRST, bytes) == FIRST
    assert path.read_bytes() == FIRST


def test_half_a_line_stays_until_it_is_known_to_be_ours(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(FIRST + b"2\nha")

    def take(text):
        assert path.read_bytes().endswith(b"ha")
        return text

    with LineFile(path) as lines, pytest.raises(ACPOError, match="not ours"):
        lines.resume(FIRST, refuse)
    with LineFile(path) as lines:
        assert lines.resume(FIRST, take) == FIRST + b"2\n"
        lines.append(b"3\n")
    assert path.read_bytes() == FIRST + b"2\n3\n"


def test_a_foreign_file_without_a_line_end_is_left_as_it_is(tmp_path):
    path = tmp_path / "thesis"
    path.write_bytes(b"all my work")
    with LineFile(path) as lines, pytest.raises(ACPOError):
        lines.resume(FIRST, refuse)
    assert path.read_bytes() == b"all my work"
    with LineFile(path) as lines:
        assert lines.resume(FIRST, bytes, own=True) == FIRST
    assert path.read_bytes() == FIRST


def test_replacing_keeps_the_lock_and_appends_to_the_new_file(tmp_path):
    path = tmp_path / "lines"
    with LineFile(path, sync=True) as lines:
        lines.resume(FIRST, bytes)
        lines.append(b"2\n")
        lines.replace(FIRST)
        with pytest.raises(ACPOError, match="another process"):
            LineFile(path)
        lines.append(b"3\n")
    assert path.read_bytes() == FIRST + b"3\n"
    assert [file.name for file in tmp_path.iterdir()] == ["lines"]
    LineFile(path).close()


@pytest.mark.parametrize("name", ["lines.jsonl", "lines.partial"])
def test_replacing_spoils_no_file_beside_it(tmp_path, name):
    (tmp_path / "lines.partial").write_bytes(FIRST)
    with LineFile(tmp_path / name) as lines:
        lines.resume(FIRST, bytes)
        lines.replace(FIRST + b"2\n")
    assert (tmp_path / name).read_bytes() == FIRST + b"2\n"
    assert {file.name for file in tmp_path.iterdir()} == {name, "lines.partial"}
    assert name == "lines.partial" or (tmp_path / "lines.partial").read_bytes() == FIRST


def full(file):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_replacing_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    with LineFile(tmp_path / "lines") as lines:
        lines.resume(FIRST, bytes)
        with monkeypatch.context() as patch, pytest.raises(ACPOError, match="cannot be written"):
            patch.setattr(os, "fsync", full)
            lines.replace(b"")
        lines.append(b"2\n")
    assert (tmp_path / "lines").read_bytes() == FIRST + b"2\n"
    assert [file.name for file in tmp_path.iterdir()] == ["lines"]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_full_disk_leaves_no_half_line(tmp_path, replaced):
    class Full:
        def __init__(self, file):
            self.file, self.full = file, False

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            if self.full:
                raise OSError(28, "No space left on device")
            self.full = True
            return self.file.write(data[:3])

    with LineFile(tmp_path / "lines") as lines:
        lines.resume(FIRST, bytes)
        if replaced:
            lines.replace(FIRST)
        whole, lines._file = lines._file, Full(lines._file)
        with pytest.raises(ACPOError, match="cannot be written"):
            lines.append(b"a longer line\n")
        lines._file = whole
        lines.append(b"3\n")
    assert (tmp_path / "lines").read_bytes() == FIRST + b"3\n"


def test_a_file_system_without_locks_is_named_as_such(tmp_path, monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ACPOError, match="cannot be locked"), store.alone(tmp_path / "study"):
        pass
    with pytest.raises(ACPOError, match=r"cannot be locked \(Function not implemented\)"):
        LineFile(tmp_path / "lines")


def test_what_keeps_no_lines_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(ACPOError, match="keeps no lines"):
            LineFile(place)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    write_whole(pipe, "all of it")
    assert pipe.is_fifo()
    assert os.read(reader, 100) == b"all of it"
    os.close(reader)


def test_a_link_stays_one(tmp_path):
    for name in ("whole", "lines"):
        (tmp_path / f"{name}-link").symlink_to(name)
        (tmp_path / name).write_bytes(FIRST)
    write_whole(tmp_path / "whole-link", "2\n")
    with LineFile(tmp_path / "lines-link") as lines:
        lines.replace(b"2\n")
        lines.append(b"3\n")
    assert (tmp_path / "whole").read_bytes() == b"2\n" and (tmp_path / "whole-link").is_symlink()
    assert (tmp_path / "lines").read_bytes() == b"2\n3\n" and (tmp_path / "lines-link").is_symlink()
    assert len([*tmp_path.iterdir()]) == 4


@pytest.fixture
def little_room():
    """No file of more than 4 bytes can be written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_what_cannot_be_written_is_named_and_what_was_there_stays(tmp_path, little_room):
    path = tmp_path / "lines"
    with LineFile(path) as lines:
        lines.resume(b"1\n", bytes)
        for write in (lines.append, lines.replace):
            with pytest.raises(ACPOError, match=rf"^{path} cannot be written \("):
                write(b"22222\n")
    with pytest.raises(ACPOError, match=rf"^{path} cannot be written \("):
        write_whole(path, "22222\n")
    assert path.read_bytes() == b"1\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_with_its_remedy(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(ACPOError, match=r"full cannot be written \(No space .*\): make room, or"):
        write_whole(tmp_path / "full", "text")
