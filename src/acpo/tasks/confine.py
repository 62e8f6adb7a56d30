"""What a grader's process gives up before it sees model output: programs, files, connections.

Graders are known to `eval` what they are given. The filter is the kernel's (seccomp), set by the
process on itself: reading, computing, threads and the sockets it holds remain.
"""

import ctypes
import errno
import os
import platform
import struct

_EVERYWHERE = (424, 425, 426, 427, 434, 437, 438)  # pidfd_send_signal, io_uring, openat2, pidfd
# machine: (audit architecture, calls that are denied, clone, {open call: which argument has flags})
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
    "x86_64": (0xC000003E, _X86_64, 56, {2: 1, 257: 2}),
    "aarch64": (0xC00000B7, _AARCH64, 220, {56: 2}),
}
_CLONE3, _X32_BIT, _CLONE_THREAD = 435, 0x40000000, 0x00010000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def confine() -> bool:
    """Give it up, for this process and for good; False where the system has no such filter."""
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        return False
    steps = _steps(*_MACHINES[platform.machine()])
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    program = _Program(len(steps), code)
    system = ctypes.CDLL(None, use_errno=True)
    return (
        system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
        and system.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0
    )


def _steps(
    architecture: int, denied: tuple[int, ...], clone: int, opens: dict[int, int]
) -> list[tuple[int, int, int, int]]:
    deny = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        deny,
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32_BIT),
        deny,
        # glibc falls back to clone, whose flags a filter can read.
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for number in (*denied, *_EVERYWHERE):
        steps += [(_EQUAL, 0, 1, number), deny]
    for number, argument in opens.items():
        flags = (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)
        steps += [(_EQUAL, 0, 4, number), flags, (_ANY_BIT, 0, 1, _WRITING), deny, allow]
    thread = (_LOAD, 0, 0, _ARGUMENTS)
    steps += [(_EQUAL, 0, 4, clone), thread, (_ANY_BIT, 1, 0, _CLONE_THREAD), deny, allow]
    return [*steps, allow]
