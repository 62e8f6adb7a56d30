"""Seccomp filters, and bubblewrap's: system calls that no solution needs and an escape would."""

import errno
import platform
import struct
from collections.abc import Iterable, Sequence

# Numbers from the kernel's unistd tables.
_SHARED = {
    "memfd_secret": 447,
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
}
_X86_64 = _SHARED | {
    "shmget": 29, "semget": 64, "msgget": 68, "ptrace": 101, "pivot_root": 155, "chroot": 161,
    "acct": 163, "mount": 165, "umount2": 166, "swapon": 167, "reboot": 169, "init_module": 175,
    "delete_module": 176, "mq_open": 240, "kexec_load": 246, "add_key": 248, "request_key": 249,
    "keyctl": 250, "unshare": 272, "perf_event_open": 298, "name_to_handle_at": 303,
    "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
    "finit_module": 313, "bpf": 321, "userfaultfd": 323,
    "memfd_create": 319,
}  # fmt: skip
_AARCH64 = _SHARED | {
    "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "acct": 89, "unshare": 97,
    "kexec_load": 104, "init_module": 105, "delete_module": 106, "ptrace": 117, "reboot": 142,
    "mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194, "add_key": 217,
    "request_key": 218, "keyctl": 219, "swapon": 224, "perf_event_open": 241,
    "name_to_handle_at": 264, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
    "process_vm_writev": 271, "finit_module": 273, "bpf": 280, "userfaultfd": 282,
    "memfd_create": 279,
}  # fmt: skip
# machine: (denied calls, clone, socket)
_MACHINES = {"x86_64": (_X86_64, 56, 41), "aarch64": (_AARCH64, 220, 198)}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE3 = 435
_X32_BIT = 0x40000000
_NAMESPACE_FLAGS = 0x7E020000
_SOCKET_DOMAINS = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6: those the new namespaces confine

LOAD, EQUAL, _AT_LEAST, ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, ARGUMENTS = 0, 4, 16
_ERRNO = 0x00050000

Step = tuple[int, int, int, int]
"""An operation, how many steps to skip where its test holds and where not, and its operand."""
ALLOW: Step = (_RETURN, 0, 0, 0x7FFF0000)
DENY: Step = (_RETURN, 0, 0, _ERRNO | errno.EPERM)


def seccomp_filter() -> bytes | None:
    """The filter as bubblewrap reads it, or None on a machine whose call numbers are unknown."""
    machine = platform.machine()
    if machine not in _MACHINES:
        return None
    denied, clone, socket = _MACHINES[machine]
    flags = [(LOAD, 0, 0, ARGUMENTS), (ANY_BIT, 0, 1, _NAMESPACE_FLAGS), DENY, ALLOW]
    domains = [(LOAD, 0, 0, ARGUMENTS)]
    for domain in _SOCKET_DOMAINS:
        domains += [(EQUAL, 0, 1, domain), ALLOW]
    domains += [DENY]
    looks = [(EQUAL, 0, len(flags), clone), *flags, (EQUAL, 0, len(domains), socket), *domains]
    return filter_program(machine, sorted(denied.values()), looks)


def filter_program(machine: str, denied: Iterable[int], looks: Sequence[Step]) -> bytes:
    """A filter that denies calls by number, then takes `looks` at others, and allows the rest."""
    program: list[Step] = [
        (LOAD, 0, 0, _ARCHITECTURE),
        (EQUAL, 1, 0, _ARCHITECTURES[machine]),
        DENY,
        (LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32_BIT),
        DENY,
        # glibc falls back to clone, whose flags a filter can read.
        (EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for number in denied:
        program += [(EQUAL, 0, 1, number), DENY]
    return b"".join(struct.pack("=HBBI", *step) for step in (*program, *looks, ALLOW))
