"""Jobs of the tests: what hostile graphs make a work process do, and worse."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

from kernelfarm.errors import InvalidGraphError


def _echo(parts: Sequence[bytes]) -> list[bytes]:
    return list(parts)


def _pid(parts: Sequence[bytes]) -> list[bytes]:
    return [b"%d" % os.getpid()]


def _spin(parts: Sequence[bytes]) -> list[bytes]:
    """Uses a processor for some seconds, or for ever."""
    ends_s = time.process_time() + float(parts[0]) if parts else float("inf")
    while time.process_time() < ends_s:
        pass
    return [b"%d" % os.getpid()]


def _sleep(parts: Sequence[bytes]) -> list[bytes]:
    time.sleep(3600)
    return []


def _take_memory(parts: Sequence[bytes]) -> list[bytes]:
    held = []
    while True:
        held.append(bytearray(1 << 24))


def _hold(parts: Sequence[bytes]) -> list[bytes]:
    _HELD.append(b"x" * int(parts[0]))
    return [b"%d" % os.getpid()]


def _crash(parts: Sequence[bytes]) -> list[bytes]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return []


def _refuse(parts: Sequence[bytes]) -> list[bytes]:
    raise InvalidGraphError("node 7 is wrong")


def _refuse_after_fault(parts: Sequence[bytes]) -> list[bytes]:
    try:
        return [b"%d" % (1 // len(parts))]
    except ZeroDivisionError as error:
        raise InvalidGraphError("node 7 divides by nothing") from error


def _fail(parts: Sequence[bytes]) -> list[bytes]:
    raise ZeroDivisionError("our bug")


def _descriptors(parts: Sequence[bytes]) -> list[bytes]:
    """The open files of this process, as links."""
    folder = f"/proc/{os.getpid()}/fd"
    links = []
    for name in os.listdir(folder):
        try:
            links.append(os.readlink(f"{folder}/{name}").encode())
        except OSError:  # the folder's own descriptor is closed by now
            continue
    return links


def _modules(parts: Sequence[bytes]) -> list[bytes]:
    return [name.encode() for name in sys.modules]


_HELD: list[bytes] = []

JOBS = {
    "echo": _echo,
    "pid": _pid,
    "spin": _spin,
    "sleep": _sleep,
    "take_memory": _take_memory,
    "hold": _hold,
    "crash": _crash,
    "refuse": _refuse,
    "refuse_after_fault": _refuse_after_fault,
    "fail": _fail,
    "descriptors": _descriptors,
    "modules": _modules,
}
