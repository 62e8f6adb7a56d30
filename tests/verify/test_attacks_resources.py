"""Attacks 13 to 26: solutions that exhaust, outlive or leave their sandbox."""

import gc
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time

import pytest

from acpo.verify import Limits, session
from acpo.verify.sandbox import _Sessions
from acpo.verify.verdict import Outcome
from verify.sandboxed import (
    ADD,
    HASTY,
    SHORT,
    MarkedLauncher,
    backend,
    inside,
    judge,
    sandbox_processes,
)

pytestmark = pytest.mark.sandbox


def test_attack_13_fork_bomb():
    start = time.monotonic()
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError: pass"
    verdict = judge(bomb, limits=HASTY)
    assert verdict.outcome in (Outcome.TIMEOUT, Outcome.LIMIT)
    assert time.monotonic() - start < HASTY.wall_seconds + 30
    assert not sandbox_processes()


def test_attack_13_processes_are_counted():
    count = (
        "import os, time\n"
        "def add(a, b):\n"
        "    n = 0\n"
        "    try:\n"
        "        while n < 500:\n"
        "            if os.fork() == 0: time.sleep(60)\n"
        "            n += 1\n"
        "    except OSError: pass\n"
        "    return n\n"
    )
    [reply] = inside(count, "add(1, 2)")
    assert 1 <= json.loads(reply)["value"] <= SHORT.processes
    assert not sandbox_processes()


DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        time.sleep(300)
    os._exit(0)
def add(a, b): return a + b
"""


def test_attack_14_daemon_outlives_nothing():
    # The answers are right, so the verdict is too; what must not happen is that it stays.
    assert judge(DAEMON).outcome is Outcome.CORRECT
    assert not sandbox_processes()
    assert judge(DAEMON + "time.sleep(300)", limits=HASTY).outcome is Outcome.TIMEOUT
    assert not sandbox_processes()


def test_attack_15_ignores_signals():
    code = (
        "import signal\n"
        "for number in range(1, 65):\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "while True: pass\n"
    )
    assert judge(code, limits=HASTY).outcome is Outcome.TIMEOUT
    assert not sandbox_processes()


@pytest.mark.parametrize(
    "loop",
    [
        "import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')",
        "pow(3, 10 ** 9)",
        "sum(range(10 ** 18))",
        "all(x is not None for x in iter(int, 1))",
    ],
)
def test_attack_16_endless_loop_in_c(loop):
    start = time.monotonic()
    code = f"def add(a, b):\n    {loop.replace(chr(10), chr(10) + '    ')}"
    assert judge(code, limits=HASTY).outcome in (Outcome.TIMEOUT, Outcome.LIMIT)
    assert time.monotonic() - start < HASTY.wall_seconds + 30


def test_attack_17_ten_gigabytes():
    verdict = judge("def add(a, b):\n    x = bytearray(10 ** 10)\n    return a + b")
    assert verdict.outcome is Outcome.LIMIT
    assert judge("x = 'a' * 10 ** 10\ndef add(a, b): return a + b").outcome is not Outcome.CORRECT


def test_attack_17_memory_of_many_processes():
    code = (
        "import os, time\n"
        "for _ in range(12):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(b'x') * (200 << 20)\n"
        "        time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    verdict = judge(code)
    assert (verdict.outcome, verdict.detail) == (
        Outcome.LIMIT,
        "more resident memory than memory_bytes",
    )
    assert not sandbox_processes()


HOLD = {
    "shared pages": "import mmap\nfor _ in range(4):\n    if os.fork() == 0:\n"
    "        m = mmap.mmap(-1, 200 << 20)\n"
    "        for at in range(0, 200 << 20, 4096): m[at] = 1\n"
    "        time.sleep(60)\n",
    "pages without a process": "for n in range(60):\n"
    "    held.append(os.memfd_create('x')); os.write(held[-1], b'x' * (16 << 20))\n",
}


@pytest.mark.parametrize("name", HOLD)
def test_attack_17_memory_that_is_shared(name):
    """Pages that several processes share, or none has mapped, are memory like any other."""
    held = f"import os, time\nheld = []\n{HOLD[name]}"
    verdict = judge(f"{held}time.sleep(5)\ndef add(a, b): return a + b")
    expected = Outcome.LIMIT if name == "shared pages" else Outcome.INCORRECT
    assert verdict.outcome is expected


GROW = """
import os, threading, time
def grow():
    for _ in range(3):
        if os.fork() == 0:
            x = bytearray(b'x') * (300 << 20)
            time.sleep(60)
"""


def test_attack_17_memory_while_replies_keep_coming():
    """A reply every 40 ms leaves no pause in which to look, and the look comes all the same."""
    calls = {**ADD, "test_code": "assert add(1, 2) == 3\n" * 1000}
    code = f"{GROW}grow()\ndef add(a, b):\n    time.sleep(0.04)\n    return a + b"
    assert judge(code, calls).outcome is Outcome.LIMIT
    assert not sandbox_processes()


def test_attack_17_memory_while_the_test_is_started(monkeypatch):
    """A solution that breaks its limit while the sandbox beside it starts is not the machine's."""

    class Greedy:
        def _watch_memory(self):
            raise session.SessionEnded(Outcome.LIMIT, "more resident memory than memory_bytes")

    monkeypatch.setattr(session, "_TICK_SECONDS", 0.0)
    with _Sessions(MarkedLauncher(), Limits()) as sessions:
        sessions._opened = siblings = [Greedy()]
        with pytest.raises(session.SessionEnded) as ended:
            sessions.open({"mode": "calls", "sources": []})
        assert ended.value.outcome is Outcome.LIMIT
        siblings.clear()
    assert not sandbox_processes()


def test_attack_17_memory_behind_a_closed_channel():
    script = {"inputs": [""], "outputs": ["x"]}
    code = "print('x', flush=True)\nos.closerange(3, 64)\ngrow()\ntime.sleep(40)"
    assert judge(f"{GROW}{code}", script).outcome is Outcome.LIMIT
    assert judge(f"{GROW}os.closerange(3, 64)\ngrow()\ntime.sleep(40)").reward() == 0.0
    assert not sandbox_processes()


FLOOD = """
import os, sys
def add(a, b):
    line = b'{"value": {"list": [' + b",".join([b'{"list":[]}'] * 65000) + b"]}}\\n"
    for _ in range(60):
        rest = line
        while rest: rest = rest[os.write(int(sys.argv[1]), rest):]
"""


def test_attack_18_a_flood_of_large_replies():
    """Sixty replies of almost a mebibyte, each made of as many objects as fit."""
    backend()  # or skip: the program below looks for the sandbox itself
    program = (
        "import resource, sys\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from acpo.verify.sandbox import Limits, sandbox\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "box, seen, before = sandbox(Limits(wall_seconds=300.0)), [], peak()\n"
        "def accept(reply): seen.append(len(reply['value']['list'])); return True\n"
        f"run = box.run_calls([{FLOOD!r}], ['add(1, 2)'] * 60, accept)\n"
        "print(run.ended, sum(seen), (peak() - before) >> 10)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    ended, seen, grown = done.stdout.split()
    assert (ended, int(seen)) == ("None", 60 * 65000), done.stderr
    assert int(grown) < 100


def test_attack_18_output_floods():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    flood = "import sys\nfor _ in range(100): sys.stdout.write('x' * 10 ** 6)\n"
    scripts = {"inputs": [""], "outputs": ["x"]}
    assert judge(flood, scripts).outcome is Outcome.LIMIT
    endless = "import sys\nwhile True: sys.stderr.write('x' * 10 ** 6)\n"
    assert judge(endless, scripts, HASTY).outcome is Outcome.TIMEOUT
    assert judge("def add(a, b): return 'x' * 10 ** 7").outcome is Outcome.LIMIT
    # Printing is not an answer: the calls decide.
    assert judge(f"{flood}def add(a, b): return a + b").outcome is Outcome.CORRECT
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


FILL = """
import os
def blocks():
    written = 0
    try:
        for index in range(100000):
            with open(f"/tmp/fill-{index}", "wb") as file:
                written += file.write(b"x" * (1 << 20))
    except OSError:
        pass
    return written >> 20
def sparse():
    try:
        with open("/tmp/sparse", "wb") as file:
            file.truncate(1 << 40)
        return "made"
    except OSError:
        return "refused"
def inodes():
    made = 0
    try:
        while made < 4000:
            open(f"/tmp/n{made}", "w").close()
            made += 1
    except OSError:
        pass
    return made
"""


def test_attack_19_disk_inode_and_sparse_fill():
    [blocks, sparse] = inside(FILL, "blocks()", "sparse()")
    assert json.loads(blocks)["value"] <= 4 * SHORT.file_bytes >> 20
    # Python ignores SIGXFSZ, so the limit shows as an error.
    assert json.loads(sparse)["value"] == "refused"
    assert inside(FILL, "inodes()")
    outside = os.listdir(tempfile.gettempdir())
    assert not [name for name in outside if re.fullmatch(r"fill-\d+|sparse|n\d+", name)]


def test_attack_20_symlink_and_dotdot():
    code = """
import os
def add(a, b):
    got = []
    for target in ["/etc/passwd", "/etc/shadow", "/root", "/home", "/var", "/sys/kernel"]:
        for path in [target, ".." + target, "/tmp/.." + target, "/proc/self/root" + target,
                     "/proc/1/root" + target]:
            try:
                os.symlink(path, "/tmp/link"); got.append(open("/tmp/link").read())
            except OSError: pass
            finally:
                try: os.unlink("/tmp/link")
                except OSError: pass
    for path in ["/runner.py", "/usr/lib/x", "/lib/x", os.__file__]:
        try: open(path, "a"); got.append(path)
        except OSError: pass
    return got
"""
    assert inside(code, "add(1, 2)") == ['{"value": {"list": []}}']


NETWORK = """
import os, socket
def reach(port, path, abstract):
    got = []
    for family, address in [
        (socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET, ("8.8.8.8", 53)),
        (socket.AF_INET6, ("::1", port)), (socket.AF_UNIX, path),
        (socket.AF_UNIX, "\\0" + abstract),
    ]:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as s:
                s.settimeout(0.5); s.connect(address); got.append(str(address))
        except OSError: pass
    try: got.append(socket.getaddrinfo("example.com", 80))
    except OSError: pass
    for family in (getattr(socket, "AF_VSOCK", 40), socket.AF_NETLINK, socket.AF_PACKET):
        try: socket.socket(family, socket.SOCK_DGRAM); got.append(int(family))
        except OSError: pass
    return got
"""


def test_attack_21_network(tmp_path):
    path, abstract = str(tmp_path / "s"), f"acpo-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as nameless,
    ):
        named.bind(path)
        named.listen()
        nameless.bind("\0" + abstract)
        nameless.listen()
        port = tcp.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        call = f"reach({port}, {path!r}, {abstract!r})"
        assert inside(NETWORK, call) == ['{"value": {"list": []}}']


def test_attack_22_environment_secrets(monkeypatch):
    monkeypatch.setenv("ACPO_TEST_SECRET", "hunter2hunter2")
    code = """
import os, glob
def add(a, b):
    text = repr(dict(os.environ))
    for path in glob.glob("/proc/*/environ"):
        try: text += open(path).read()
        except OSError: pass
    return text
"""
    [reply] = inside(code, "add(1, 2)")
    assert "value" in json.loads(reply)
    assert "hunter2" not in reply
    assert "PATH" not in reply


SYSCALLS = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def add(a, b):
    won = []
    def tries(name, result):
        if result != -1: won.append(name)
    tries("mount", libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
    tries("umount", libc.umount2(b"/proc", 2))
    tries("unshare user", libc.unshare(0x10000000))
    tries("unshare mount", libc.unshare(0x00020000))
    tries("setns", libc.setns(0, 0))
    tries("setuid", libc.setuid(0))
    tries("setgid", libc.setgid(0))
    tries("ptrace", libc.ptrace(16, 1, 0, 0))
    tries("chroot", libc.chroot(b"/tmp"))
    tries("shmget", libc.shmget(0, 1 << 30, 0o1600))
    tries("sethostname", libc.sethostname(b"x", 1))
    tries("personality reboot", libc.reboot(0x1234567))
    try:
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        won.append("rlimit")
    except (OSError, ValueError): pass
    try: os.kill(1, signal.SIGKILL)
    except OSError: pass
    return won
"""


def test_attack_23_system_calls():
    assert inside(SYSCALLS, "add(1, 2)") == ['{"value": {"list": []}}']


def test_attack_24_deep_recursion_and_segfault():
    assert judge("def add(a, b): return add(a, b)").outcome is Outcome.INCORRECT
    assert judge("x = []\nfor _ in range(10 ** 5): x = [x]\ndef add(a, b): return x").outcome in (
        Outcome.INCORRECT,
        Outcome.LIMIT,
    )
    crash = "import sys\nsys.setrecursionlimit(10 ** 9)\ndef add(a, b): return add(a, b) + 1"
    assert judge(crash).outcome is not Outcome.CORRECT
    segfault = judge("import ctypes\ndef add(a, b): return ctypes.string_at(0)")
    assert (segfault.outcome, segfault.detail) == (Outcome.INCORRECT, "ended by SIGSEGV")


def test_attack_24_deep_nesting_of_the_source():
    for source in ("(" * 10**5, "-" * 10**5 + "1", "[" * 9000 + "]" * 9000):
        assert judge(f"x = {source}\ndef add(a, b): return a + b").outcome is not Outcome.CORRECT


def test_attack_25_thread_bomb_and_leaked_descriptors():
    threads = (
        "import threading, time\n"
        "def add(a, b):\n"
        "    n = 0\n"
        "    try:\n"
        "        while n < 10000:\n"
        "            threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1\n"
        "    except RuntimeError: pass\n"
        "    return n\n"
    )
    files = (
        "import os\n"
        "def add(a, b):\n"
        "    held = []\n"
        "    try:\n"
        "        while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "    except OSError: return len(held)\n"
    )
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    assert json.loads(inside(threads, "add(1, 2)")[0])["value"] <= SHORT.processes
    assert json.loads(inside(files, "add(1, 2)")[0])["value"] <= SHORT.files
    assert len(os.listdir("/proc/self/fd")) == before
    assert not sandbox_processes()


def test_attack_26_reads_stdin_forever():
    assert judge("def add(a, b):\n    while True: input()").outcome is Outcome.INCORRECT
    scripts = {"inputs": ["1\n"], "outputs": ["1\n"]}
    endless = "import sys\nwhile True: sys.stdin.read()"
    assert judge(endless, scripts, HASTY).outcome is Outcome.TIMEOUT
    assert judge("import sys\nprint(sys.stdin.read())", scripts).outcome is Outcome.CORRECT
