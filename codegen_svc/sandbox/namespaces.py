"""Linux namespaces: no network, no other processes, a small file system in memory."""

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
# The smallest value that Linux accepts. Since 6.14 each process namespace has its own limit.
_FEWEST_PROCESSES: Final = 301


def enter_shared_namespaces() -> None:
    """Leaves the host's network, IPC, mounts and users, for this process and all its children.

    Raises:
        OSError: the host does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    unshare(NEW_USER | _SHARED)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def mount_memory(folder: Path, size_bytes: int) -> None:
    """Mounts an empty file system in memory on a folder; only these namespaces see it.

    Raises:
        OSError: the host does not allow it.
    """
    mount("none", "/", _PRIVATE | _RECURSIVE, "")
    mount("tmpfs", str(folder), _NO_SUID | _NO_DEVICES, f"size={size_bytes},mode=0700")


def enter_process_namespace() -> None:
    """Gives the next child a process namespace; its descendants end with it.

    Raises:
        OSError: the host does not allow it.
    """
    unshare(NEW_PID)


def limit_namespace_processes(count: int) -> None:
    """Limits processes and threads of the process namespace, if the kernel can (Linux 6.14)."""
    try:
        Path("/proc/sys/kernel/pid_max").write_text(str(max(count, _FEWEST_PROCESSES)))
    except OSError:
        return  # the supervisor counts them as well
