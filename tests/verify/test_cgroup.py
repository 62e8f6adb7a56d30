"""Control groups: made where they may be, done without where not."""

import os
from pathlib import Path

import pytest

from acpo.verify import Outcome, cgroup, session
from acpo.verify.cgroup import ControlGroup, parent_group
from verify.sandboxed import ADD, inside, judge

FILES = ("memory.max", "memory.oom.group", "memory.swap.max", "pids.max", "cgroup.procs")


@pytest.fixture
def group(tmp_path, monkeypatch) -> Path:
    """A folder that looks like the group of this process: new folders in it have their files."""
    real = Path.mkdir

    def mkdir(path: Path, *args, **kwargs) -> None:
        real(path, *args, **kwargs)
        for name in FILES:
            (path / name).touch()

    own = tmp_path / "root" / "session"
    own.mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "cgroup").write_text("1:name=x:/\n0::/session\n")
    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(cgroup, "_EMPTY_SECONDS", 0.0)
    return own


def test_limits_are_written_before_a_process_is_added(group, tmp_path):
    parent = parent_group(tmp_path / "root", tmp_path / "cgroup")
    assert parent == group
    made = ControlGroup(parent, 1 << 20, 32)
    made.add([os.getpid()])
    [folder] = [path for path in group.iterdir() if path.is_dir()]
    written = {name: (folder / name).read_text() for name in FILES}
    assert written == dict(zip(FILES, ["1048576", "1", "0", "32", str(os.getpid())], strict=True))
    for name in FILES:
        (folder / name).unlink()
    made.close()
    assert not folder.exists()


def test_where_none_may_be_made(tmp_path):
    assert parent_group(tmp_path, tmp_path / "none") is None
    (tmp_path / "cgroup").write_text("1:memory:/x\n")
    assert parent_group(tmp_path, tmp_path / "cgroup") is None


def test_a_group_without_controllers_asks_for_them(tmp_path):
    (tmp_path / "cgroup").write_text("0::/\n")
    control = tmp_path / "cgroup.subtree_control"
    control.write_text("cpu\n")
    assert parent_group(tmp_path, tmp_path / "cgroup") == tmp_path
    assert control.read_text() == "+memory +pids"


@pytest.mark.sandbox
def test_a_group_that_fails_is_done_without(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "parent_group", lambda: tmp_path / "not there")
    assert judge("def add(a, b): return a + b", ADD).correct
    monkeypatch.setattr(session, "parent_group", lambda: tmp_path)  # no files in new folders
    assert judge("def add(a, b): return a + b", ADD).correct
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sandbox
def test_the_kernel_holds_the_group():
    if parent_group() is None:
        pytest.skip("no cgroup v2 below this process")
    assert "/acpo-" in inside("", "open('/proc/self/cgroup').read()")[0]
    grow = (
        "import os, mmap\nif os.fork() == 0:\n    m = mmap.mmap(-1, 400 << 20)\n"
        "    m.write(b'x' * (400 << 20))\nx = bytearray(b'x') * (400 << 20)\n"
    )
    assert judge(f"{grow}def add(a, b): return a + b").outcome is Outcome.LIMIT
