"""What may be where a farm should: nothing, or what takes a connection and says too little."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_SETTINGS = bytes(3) + b"\4" + bytes(5)
"""HTTP/2's frame without settings, with which a server begins."""

_LISTEN = """
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("listening", flush=True)
listening.accept()
"""

PEERS = ("closed", "silent", "settings", "stopped", "nameless")


@contextmanager
def peer(kind: str, folder: Path) -> Iterator[str]:
    """The endpoint of a peer of a kind.

    closed      nothing listens there
    silent      takes connections, and never says a word
    settings    begins as HTTP/2 does, and answers nothing
    stopped     a process behind a unix socket that SIGSTOP stopped
    nameless    a name that does not resolve
    """
    if kind == "nameless":
        yield "farm.invalid:50051"
    elif kind == "stopped":
        yield from _stopped(folder / "farm.sock")
    else:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            if kind != "closed":
                listening.listen()
                greet = (lambda taken: taken.sendall(_SETTINGS)) if kind == "settings" else id
                threading.Thread(target=_take, args=(listening, greet), daemon=True).start()
            yield f"127.0.0.1:{listening.getsockname()[1]}"
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)


def _take(listening: socket.socket, greet: Callable[[socket.socket], object]) -> None:
    with ExitStack() as kept, suppress(OSError):
        while True:
            taken, _ = listening.accept()
            kept.enter_context(taken)
            greet(taken)


def _stopped(path: Path) -> Iterator[str]:
    command = [sys.executable, "-c", _LISTEN, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "listening\n"
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield f"unix:{path}"
        finally:
            process.kill()
