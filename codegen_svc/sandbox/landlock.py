"""Restricts the files that a process may use, by Linux's Landlock.

Source: `Documentation/userspace-api/landlock.rst` of the kernel.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from codegen_svc.sandbox.system_calls import (
    LANDLOCK_ADD_RULE,
    LANDLOCK_CREATE_RULESET,
    LANDLOCK_RESTRICT_SELF,
    system_call,
)

_VERSION_FLAG: Final = 1
_RULE_PATH_BENEATH: Final = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_FIRST_RIGHTS: Final = (1 << 13) - 1
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_BIND_AND_CONNECT: Final = 0b11
_SOCKETS_AND_SIGNALS: Final = 0b11


def landlock_version() -> int:
    """The version of Landlock's interface, 0 if the kernel has none."""
    try:
        return system_call(LANDLOCK_CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def restrict_files(readable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Restricts this process for ever to some paths to read and execute, and some to write.

    If the interface is new enough, TCP and signals to other processes are denied too. Paths that do
    not exist are ignored. Requires `deny_new_privileges`.

    Raises:
        OSError: the host has no Landlock.
    """
    version = landlock_version()
    rights = _rights(version)
    network = _BIND_AND_CONNECT if version >= 4 else 0
    scopes = _SOCKETS_AND_SIGNALS if version >= 6 else 0
    attributes = struct.pack("QQQ", rights, network, scopes)
    rules = system_call(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path in readable:
            _allow(rules, path, _READ & rights)
        for path in writable:
            _allow(rules, path, rights & ~_EXECUTE)
        system_call(LANDLOCK_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _rights(version: int) -> int:
    rights = _FIRST_RIGHTS
    for first_version, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)):
        if version >= first_version:
            rights |= right
    return rights


def _allow(rules: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        system_call(LANDLOCK_ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
