"""Linux system calls that Python does not offer."""

from __future__ import annotations

import ctypes
import os
from typing import Final

NEW_USER, NEW_NET, NEW_IPC = 0x10000000, 0x40000000, 0x08000000
NEW_PID, NEW_MOUNT, NEW_UTS = 0x20000000, 0x00020000, 0x04000000

# `asm-generic/unistd.h`: the same numbers on every architecture since Linux 5.1.
LANDLOCK_CREATE_RULESET: Final = 444
LANDLOCK_ADD_RULE: Final = 445
LANDLOCK_RESTRICT_SELF: Final = 446

_SET_PDEATHSIG, _SET_DUMPABLE, _SET_SECCOMP, _SET_CHILD_SUBREAPER = 1, 4, 22, 36
_CAPBSET_DROP, _SET_NO_NEW_PRIVS = 24, 38
_SECCOMP_MODE_FILTER: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_MAX_CAPABILITIES: Final = 64

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Filter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def system_call(number: int, *arguments: int | bytes | None) -> int:
    """Makes a system call by number.

    Raises:
        OSError: it fails.
    """
    passed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *passed))


def unshare(flags: int) -> None:
    """Gives this process namespaces of its own; a process namespace is for its next children.

    Raises:
        OSError: the host does not allow it.
    """
    _checked(_libc.unshare(ctypes.c_int(flags)))


def mount(kind: str, where: str, flags: int, options: str) -> None:
    """Mounts a file system that needs no device.

    Raises:
        OSError: the host does not allow it.
    """
    texts = (kind.encode(), where.encode(), kind.encode())
    _checked(_libc.mount(*texts, ctypes.c_ulong(flags), options.encode()))


def die_with_parent(signal_number: int) -> None:
    """Sends this process the signal when the thread that forked it ends."""
    _prctl(_SET_PDEATHSIG, signal_number)


def deny_new_privileges() -> None:
    """No program that this process starts gets more rights; required for filters and Landlock."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def be_no_dump() -> None:
    """Other processes of the same user may not read this process's memory."""
    _prctl(_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Orphaned descendants become children of this process, so that it sees them."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def drop_capabilities() -> None:
    """Gives up every capability, for ever."""
    for capability in range(_MAX_CAPABILITIES):
        if _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # past the last one, or not allowed: then `no_new_privs` is enough
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()))


def install_filter(program: bytes) -> None:
    """Installs a seccomp filter: a BPF program with instructions of 8 bytes.

    Raises:
        OSError: the host does not allow it.
    """
    _prctl(_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_Filter(len(program) // 8, program)))


def _prctl(option: int, *arguments: object) -> None:
    padded = [*arguments, 0, 0, 0, 0][:4]
    passed = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in padded]
    _checked(_libc.prctl(option, *passed))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
