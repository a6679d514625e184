"""A proxy before a Redis server: it can switch clients to another server, or stop a connection.

Real processes reach real servers through it. A test chooses a command at which a connection stops,
before the server receives it or after the server executed it, and kills the sender there. The
proxy searches for words in the bytes that arrive at once: a command, or the start of a long one.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

_READ_BYTES = 1 << 20
_POLL_S = 0.05


@dataclass
class Hold:
    """Where a connection stops: at the first command with all of `words`.

    With `after`, the server executes the command, and the proxy holds its reply back.
    """

    words: tuple[bytes, ...]
    after: bool
    reached: threading.Event = field(default_factory=threading.Event)

    def matches(self, data: bytes) -> bool:
        """True for the first command that has all words."""
        return not self.reached.is_set() and all(word in data for word in self.words)


class RedisProxy:
    """Listens on a unix socket at `path` and forwards to the one at `upstream`."""

    def __init__(self, path: Path, upstream: Path) -> None:
        self.url = f"unix://{path}"
        self._upstream = upstream
        self._holds: list[Hold] = []
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._listener.settimeout(_POLL_S)
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self) -> RedisProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def hold(self, *words: bytes, after: bool = False) -> Hold:
        """Stops the first connection that sends a command with these words, for good."""
        hold = Hold(words, after)
        self._holds.append(hold)
        return hold

    def lead_to(self, upstream: Path, *, cuts: bool = True) -> None:
        """Forwards new connections to another server; `cuts` the present ones."""
        self._upstream = upstream
        if cuts:
            self.cut()

    def cut(self) -> None:
        """Ends all connections."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the proxy."""
        self._is_closed.set()
        self._acceptor.join()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            client.settimeout(None)
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self._upstream))
            except OSError:
                client.close()
                server.close()
                continue
            self._pairs.append((client, server))
            held: list[Hold] = []  # at most one: its reply is held back
            for work in (self._send, self._answer):
                threading.Thread(target=work, args=(client, server, held), daemon=True).start()

    def _send(self, client: socket.socket, server: socket.socket, held: list[Hold]) -> None:
        with suppress(OSError):
            while data := client.recv(_READ_BYTES):
                hold = next((hold for hold in self._holds if hold.matches(data)), None)
                if hold is not None and not hold.after:
                    hold.reached.set()
                    while client.recv(_READ_BYTES):  # until the sender has ended
                        pass
                    break
                if hold is not None:
                    held.append(hold)
                server.sendall(data)
        _end(server)

    def _answer(self, client: socket.socket, server: socket.socket, held: list[Hold]) -> None:
        with suppress(OSError):
            while data := server.recv(_READ_BYTES):
                if held:
                    held[0].reached.set()
                    continue
                client.sendall(data)
        _end(client)


def _end(half: socket.socket) -> None:
    with suppress(OSError):
        half.shutdown(socket.SHUT_RDWR)
    half.close()
