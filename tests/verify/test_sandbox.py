"""The sandbox itself: refused where it cannot work, loud where it is left out."""

import gc
import json
import os
import shutil
import stat
import subprocess
import sys

import pytest

import acpo
from acpo.errors import ACPOWarning
from acpo.verify import Limits, Outcome, unsafe_local
from acpo.verify.code import CodePool, judge_code
from acpo.verify.sandbox import SandboxUnavailableError, sandbox
from acpo.verify.seccomp import seccomp_filter
from conftest import require_tool
from verify.sandboxed import ADD, backend, inside

HONEST = "```python\ndef add(a, b):\n    return a + b\n```"


def fake_bwrap(directory, script: str) -> str:
    path = directory / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(directory)


def test_no_bubblewrap_is_refused_with_the_install_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap"):
        CodePool(1)


def test_an_old_bubblewrap_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", fake_bwrap(tmp_path, "echo bubblewrap 0.6.1"))
    with pytest.raises(SandboxUnavailableError, match=r"0\.8\.0 or newer"):
        sandbox()


def test_a_bubblewrap_that_may_not_work_is_refused_with_its_message(monkeypatch, tmp_path):
    script = '[ "$1" = --version ] && echo bubblewrap 0.9.0 || { echo no permissions >&2; exit 1; }'
    monkeypatch.setenv("PATH", fake_bwrap(tmp_path, script))
    with pytest.raises(SandboxUnavailableError, match=r"no permissions.*user_namespaces"):
        sandbox()


def test_unsafe_local_is_loud_and_still_limited():
    with pytest.warns(ACPOWarning, match="your user's rights"):
        local = unsafe_local(Limits(cpu_seconds=1, wall_seconds=60.0))
    assert judge_code(HONEST, ADD, local).correct
    assert judge_code("```python\nimport os\nos._exit(0)\n```", ADD, local).reward() == 0.0
    assert judge_code("```python\nwhile True: pass\n```", ADD, local).outcome is Outcome.TIMEOUT
    assert judge_code("```python\nx = bytearray(1 << 34)\n```", ADD, local).outcome is Outcome.LIMIT


@pytest.mark.sandbox
def test_a_machine_out_of_descriptors_is_an_infra_error(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(24, "Too many open files")

    box = backend()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refuse)
        verdict = judge_code(HONEST, ADD, box)
    assert verdict.outcome is Outcome.INFRA_ERROR
    assert "Too many open files" in verdict.detail
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.sandbox
def test_what_is_inside():
    code = "import os, sys\ndef ls(path): return sorted(os.listdir(path))\n"
    root, tmp, uid, env = (
        json.loads(reply)["value"]
        for reply in inside(code, "ls('/')", "ls('/tmp')", "os.getuid()", "ls('/etc')")
    )
    assert set(root["list"]) <= {
        "dev", "etc", "home", "lib", "lib64", "nix", "opt", "proc", "root", "runner.py", "tmp",
        "usr",
    }  # fmt: skip
    assert tmp == {"list": []}
    assert uid != 0
    assert env == {"list": ["ld.so.cache"]}


@pytest.mark.sandbox
def test_the_filter_is_loaded():
    if seccomp_filter() is None:
        pytest.skip("no filter for this machine")
    [reply] = inside("", "open('/proc/self/status').read().split('Seccomp:')[1].split()[0]")
    assert json.loads(reply)["value"] == "2"


AS_ANOTHER_USER = """
import os, sys
os.setgroups([])
os.setresgid(4711, 4711, 4711)
os.setresuid(4711, 4711, 4711)
sys.path.insert(0, %(path)r)
from acpo.verify.code import judge_code
from acpo.verify.sandbox import SandboxUnavailableError, sandbox
from acpo.verify.session import Limits

try:
    box = sandbox(Limits(cpu_seconds=1, wall_seconds=4.0))
except SandboxUnavailableError as error:
    print("unavailable", error)
    sys.exit(0)
writes = "def add(a, b):\\n    open('{}', 'w')\\n    return a + b\\n"
bomb = "import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass\\n"
hostile = [writes.format(path) for path in ("/x", "/dev/x", "/dev/shm/x")] + [bomb]
for code in (%(honest)r, writes.format("/tmp/x"), *hostile):
    print(judge_code(code, %(problem)r, box).outcome)
"""


@pytest.mark.sandbox
def test_as_an_ordinary_user(tmp_path):
    """The way without root: a user namespace. Run by another user, so by the system's Python."""
    require_tool(shutil.which("bwrap") is not None, "bubblewrap")
    system = "/usr/bin/python3"
    version = f"{system} -c 'import sys; sys.exit(sys.version_info < (3, 11))'"
    if os.geteuid() != 0 or subprocess.run(version, shell=True, capture_output=True).returncode:
        pytest.skip("needs root, to become another user, and a system Python >= 3.11")
    package = tmp_path / "src" / "acpo"
    shutil.copytree(
        os.path.dirname(acpo.__file__), package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for path in (*tmp_path.parents, tmp_path):
        if str(path).startswith("/tmp/"):
            path.chmod(0o755)
    script = AS_ANOTHER_USER % {"path": str(tmp_path / "src"), "problem": ADD, "honest": HONEST}
    done = subprocess.run([system, "-c", script], capture_output=True, text=True, timeout=60)
    if "unavailable" in done.stdout:
        pytest.skip(done.stdout)
    assert done.stdout.split() == ["correct"] * 2 + ["incorrect"] * 3 + ["timeout"], done.stderr


def test_verify_imports_nothing_heavy():
    script = (
        "import sys\nimport acpo.verify.rewards, acpo.verify.batch, acpo.verify.mathworker\n"
        "print([n for n in ('torch', 'transformers', 'trl', 'numpy', 'sympy') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
