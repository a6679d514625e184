"""The socket of a running server process, and a client of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def socket_of(process: psutil.Process) -> Path:
    """The unix socket of a server, from its command line."""
    words = process.cmdline()
    if "--unixsocket" in words:
        return Path(words[words.index("--unixsocket") + 1])
    # A running server changes its command line to `valkey-server unixsocket:/path`.
    _, _, path = " ".join(words).partition("unixsocket:")
    return Path(path.strip())


@contextlib.contextmanager
def client_of(socket: Path) -> Iterator[redis.Redis]:
    """A client that tries once, and waits a few seconds for a response."""
    client = redis.Redis(
        unix_socket_path=str(socket), retry=Retry(NoBackoff(), 0), socket_timeout=5.0
    )
    try:
        yield client
    finally:
        client.close()
