"""Accepts the page's connections, within bounds on their number, their time and what they send.

uvicorn parses HTTP and calls the application. It accepts any number of connections and waits
without limit for a request's header, and both would take files and memory from gRPC. So this module
accepts connections itself: one more only when there is capacity, and each for a limited time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from contextlib import suppress
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from kernelfarm.end_task import end_task
from kernelfarm.errors import UnavailableError
from kernelfarm.service.logs.logger import get_logger

HANDSHAKE_TIMEOUT_S = 10.0
CONNECTION_LIFE_S = 60.0
"""A connection is closed after this time; browsers open another one."""
_KEEP_ALIVE_S = 5
_MAX_HEADER_BYTES = 16 * 1024
_BACKLOG = 32
_RETRY_ACCEPT_S = 0.1


class PageListener:
    """Serves an ASGI application on one address until it is closed."""

    def __init__(
        self,
        app: Any,
        max_connections: int,
        tls: ssl.SSLContext | None = None,
        life_s: float = CONNECTION_LIFE_S,
    ) -> None:
        self._config = Config(
            app,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        )
        self._config.load()
        self._tls = tls
        self._life_s = life_s
        self._state = ServerState()
        self._free = asyncio.Semaphore(max_connections)
        self._max_of_address = max(1, max_connections // 4)
        self._of_address: Counter[str] = Counter()
        self._serving: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    def start(self, listen: str) -> str:
        """Begins to accept connections; returns the bound address.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        host, _, port = listen.rpartition(":")
        try:
            self._socket = _bound(host.strip("[]"), int(port))
        except (OSError, ValueError) as error:
            raise UnavailableError(
                f"cannot listen on {listen!r} (KERNELFARM_PAGE_LISTEN): {error}; expected HOST:PORT"
            ) from error
        self._accepting = asyncio.create_task(self._accept(self._socket))
        return f"{host}:{self._socket.getsockname()[1]}"

    async def close(self) -> None:
        """Closes the socket and all connections."""
        if self._accepting is not None:
            await end_task(self._accepting)
        if self._socket is not None:
            self._socket.close()
        for task in tuple(self._serving):
            await end_task(task)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._free.acquire()
            try:
                connection, peer = await loop.sock_accept(listening)
            except OSError as error:  # no file is left, or the client has gone
                get_logger().warning("page_accept_failed", message=str(error))
                self._free.release()
                await asyncio.sleep(_RETRY_ACCEPT_S)
                continue
            except BaseException:
                self._free.release()
                raise
            task = asyncio.create_task(self._serve(connection, str(peer[0])))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, connection: socket.socket, address: str) -> None:
        """Serves one connection until it ends, and then makes its capacity free."""
        self._of_address[address] += 1
        try:
            if self._of_address[address] <= self._max_of_address:
                await self._converse(connection)
        finally:
            connection.close()
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]
            self._free.release()

    async def _converse(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        with suppress(OSError, ssl.SSLError, asyncio.TimeoutError):
            transport, _ = await loop.connect_accepted_socket(
                lambda: _Protocol(self._config, self._state, ended),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=min(HANDSHAKE_TIMEOUT_S, self._life_s) if self._tls else None,
            )
            try:
                await asyncio.wait_for(ended, self._life_s)
            finally:
                transport.abort()


class _Protocol(H11Protocol):
    """uvicorn's protocol, which reports the end of its connection."""

    def __init__(self, config: Config, state: ServerState, ended: asyncio.Future[None]) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._ended = ended

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection has ended."""
        super().connection_lost(exc)
        if not self._ended.done():
            self._ended.set_result(None)


def _bound(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
