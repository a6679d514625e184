"""Namespaces of one's own: no network, no foreign processes, a small file system in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from codegen_svc.sandbox.system_calls import (
    NEW_IPC,
    NEW_MOUNT,
    NEW_NET,
    NEW_PID,
    NEW_USER,
    NEW_UTS,
    mount,
    unshare,
)

_SHARED: Final = NEW_NET | NEW_IPC | NEW_MOUNT | NEW_UTS
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14
_NO_SUID, _NO_DEVICES = 1 << 1, 1 << 2
# The smallest that Linux takes; since 6.14 each process namespace has a limit of its own.
_FEWEST_PROCESSES: Final = 301


def enter_shared_namespaces() -> None:
    """Leaves the host's network, IPC, mounts and users: once for all children of this process.

    Raises:
        OSError: the host does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    unshare(NEW_USER | _SHARED)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def mount_memory(folder: Path, size_bytes: int) -> None:
    """Makes a folder an empty file system in memory, seen from these namespaces alone.

    Raises:
        OSError: the host does not allow it.
    """
    mount("none", "/", _PRIVATE | _RECURSIVE, "")
    mount("tmpfs", str(folder), _NO_SUID | _NO_DEVICES, f"size={size_bytes},mode=0700")


def enter_process_namespace() -> None:
    """The next child sees itself, its own children, and no other process; they end with it.

    Raises:
        OSError: the host does not allow it.
    """
    unshare(NEW_PID)


def limit_namespace_processes(count: int) -> None:
    """Bounds processes and threads of the process namespace where the kernel can (Linux 6.14)."""
    try:
        Path("/proc/sys/kernel/pid_max").write_text(str(max(count, _FEWEST_PROCESSES)))
    except OSError:
        return  # the supervisor counts them too
