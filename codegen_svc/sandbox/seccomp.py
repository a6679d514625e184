"""The system calls that a compilation may not make, as a filter for Linux's seccomp.

The list names calls that could reach other processes, the network or rarely used parts of the
kernel. Reading, writing, memory and threads stay allowed. Source: `linux/seccomp.h`,
`linux/filter.h`; numbers from `asm/unistd_64.h` (x86-64) and `asm-generic/unistd.h` (aarch64).
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import Final

# name: (x86-64, aarch64); None if the architecture lacks the call.
_DENIED: Final[dict[str, tuple[int | None, int | None]]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "connect": (42, 203),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "personality": (135, 92),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setgroups": (116, 159),
}
_FORKS: Final = {"fork": (57, None), "vfork": (58, None)}
_CLONE: Final = (56, 220)
_CLONE3: Final = (435, 435)
_TGKILL: Final = (234, 131)
# AUDIT_ARCH_X86_64, AUDIT_ARCH_AARCH64
_ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32_BIT: Final = 0x40000000
_CLONE_THREAD: Final = 0x00010000
# All flags that make a namespace.
_CLONE_NAMESPACES: Final = 0x7E020000

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def is_supported() -> bool:
    """True if the numbers of this machine's system calls are known here."""
    return platform.machine() in _ARCHITECTURES


def filter_program(own_pid: int, *, may_start_programs: bool) -> bytes:
    """The filter: a listed call fails with EPERM, a call of another architecture kills the process.

    Signals to `own_pid` are allowed, because a process aborts by one. Without `may_start_programs`
    the process can start only threads.
    """
    column, architecture = _ARCHITECTURES[platform.machine()]
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, architecture, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        _instruction(_RETURN, _KILL if column == 0 else _FAIL | errno.ENOSYS),
        # glibc falls back to `clone`, whose flags a filter can read.
        *_when(_CLONE3[column], [_instruction(_RETURN, _FAIL | errno.ENOSYS)]),
        *_when(_CLONE[column], _clone_rules(may_start_programs)),
        *_when(_TGKILL[column], _only_own(own_pid)),
    ]
    denied = dict(_DENIED) if may_start_programs else {**_DENIED, **_FORKS}
    for numbers in denied.values():
        number = numbers[column]
        if number is not None:
            program += _when(number, [_instruction(_RETURN, _FAIL | errno.EPERM)])
    program.append(_instruction(_RETURN, _ALLOW))
    return b"".join(program)


def _clone_rules(may_start_programs: bool) -> list[bytes]:
    rules = [
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_JUMP_BITS, _CLONE_NAMESPACES, 0, 1),
        _instruction(_RETURN, _FAIL | errno.EPERM),
    ]
    if not may_start_programs:
        rules += [
            _instruction(_JUMP_BITS, _CLONE_THREAD, 1, 0),
            _instruction(_RETURN, _FAIL | errno.EPERM),
        ]
    return [*rules, _instruction(_RETURN, _ALLOW)]


def _only_own(own_pid: int) -> list[bytes]:
    return [
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_JUMP_EQUAL, own_pid, 1, 0),
        _instruction(_RETURN, _FAIL | errno.EPERM),
        _instruction(_RETURN, _ALLOW),
    ]


def _when(number: int, rules: list[bytes]) -> list[bytes]:
    """Rules for one system call; they all return, and other calls skip them."""
    return [_instruction(_JUMP_EQUAL, number, 0, len(rules)), *rules]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
