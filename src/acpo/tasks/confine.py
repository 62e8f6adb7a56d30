"""What a grader's process gives up before it sees model output: programs, files, connections.

Graders are known to `eval` what they are given. The filter is the kernel's (seccomp), set by the
process on itself: reading, computing, threads and the sockets it holds remain.
"""

import ctypes
import os
import platform

from acpo.verify.seccomp import ALLOW, ANY_BIT, ARGUMENTS, DENY, EQUAL, LOAD, Step, filter_program

_EVERYWHERE = (424, 425, 426, 427, 434, 437, 438)  # pidfd_send_signal, io_uring, openat2, pidfd
# machine: (calls that are denied, clone, {open call: which argument has flags})
# execve, fork, socket, connect, bind, kill, ptrace, then whatever changes a file, its name or its
# rights, then memory of others, mounts, namespaces, kernel programs.
_X86_64 = (
    *(59, 322, 57, 58, 41, 42, 49, 62, 200, 234, 101),
    *(76, 77, 82, 83, 84, 85, 86, 87, 88, 90, 91, 92, 93, 94, 132, 133, 188, 189, 190, 235),
    *(258, 259, 260, 261, 263, 264, 265, 266, 268, 280, 316),
    *(310, 311, 319, 161, 165, 166, 272, 298, 308, 321, 323, 248, 250),
)
_AARCH64 = (
    *(221, 281, 198, 203, 200, 129, 130, 131, 117),
    *(5, 6, 7, 33, 34, 35, 36, 37, 38, 45, 46, 52, 53, 54, 55, 88, 276),
    *(270, 271, 279, 51, 40, 39, 97, 241, 268, 280, 282, 217, 219),
)
_MACHINES = {
    "x86_64": (_X86_64, 56, {2: 1, 257: 2}),
    "aarch64": (_AARCH64, 220, {56: 2}),
}
_CLONE_THREAD = 0x00010000
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_STEP_BYTES = 8


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def confine() -> bool:
    """Give it up, for this process and for good; False where the system has no such filter."""
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        return False
    code = grader_filter(platform.machine())
    program = _Program(len(code) // _STEP_BYTES, code)
    system = ctypes.CDLL(None, use_errno=True)
    return (
        system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
        and system.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0
    )


def grader_filter(machine: str) -> bytes:
    """The filter: files open for reading alone, and clone makes threads alone."""
    denied, clone, opens = _MACHINES[machine]
    looks: list[Step] = []
    for number, argument in opens.items():
        flags = (LOAD, 0, 0, ARGUMENTS + 8 * argument)
        looks += [(EQUAL, 0, 4, number), flags, (ANY_BIT, 0, 1, _WRITING), DENY, ALLOW]
    thread = (LOAD, 0, 0, ARGUMENTS)
    looks += [(EQUAL, 0, 4, clone), thread, (ANY_BIT, 1, 0, _CLONE_THREAD), DENY, ALLOW]
    return filter_program(machine, (*denied, *_EVERYWHERE), looks)
