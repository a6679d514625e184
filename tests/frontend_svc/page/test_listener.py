"""The page's listener: bounds on connections, on their time, on headers; TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from frontend_svc.page.listener import PageListener
from kernelfarm.errors import UnavailableError
from kernelfarm.service.tls import ServerTls
from tests.support.certificates import Authority
from tests.support.farm import TIMEOUT_S

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.url.scheme)


APP = Starlette(routes=[Route("/", hello)])


@contextlib.asynccontextmanager
async def listening(**options: Any) -> AsyncIterator[int]:
    listener = PageListener(APP, **{"max_connections": 8, **options})
    address = listener.start("127.0.0.1:0")
    try:
        yield int(address.rpartition(":")[2])
    finally:
        await listener.close()


class Connection:
    """One client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self, request: bytes = b"") -> bytes:
        """What the server sends after a request; empty if it closes the connection."""
        try:
            self.writer.write(request)
            return await asyncio.wait_for(self.reader.read(4096), TIMEOUT_S)
        except ConnectionError:
            return b""


@contextlib.asynccontextmanager
async def connected(port: int, **options: Any) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def is_served(port: int, **options: Any) -> bool:
    """True if a new connection gets a response."""
    try:
        async with connected(port, **options) as connection:
            return (await connection.answer(GET)).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


async def until_served(port: int, **options: Any) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await is_served(port, **options):
            await asyncio.sleep(0.01)


async def test_one_address_has_a_quarter_of_the_connections() -> None:
    async with listening() as port:
        async with connected(port) as first, connected(port) as second:
            assert not await is_served(port)
            assert await is_served(port, local_addr=("127.0.0.2", 0))
            for connection in (first, second):
                assert (await connection.answer(GET)).startswith(b"HTTP/1.1 200")
        await until_served(port)


async def test_a_connection_that_sends_nothing_is_closed() -> None:
    async with listening(life_s=0.2) as port, connected(port) as connection:
        assert await connection.answer() == b""


async def test_a_connection_that_sends_its_header_slowly_is_closed() -> None:
    async with listening(life_s=0.3) as port, connected(port) as connection:
        connection.writer.write(b"GET / HTTP/1.1\r\n")
        closed = asyncio.create_task(connection.answer())
        while not closed.done():
            connection.writer.write(b"X")
            await asyncio.sleep(0.05)
        assert closed.result() == b""


async def test_a_long_header_is_refused() -> None:
    async with listening() as port, connected(port) as connection:
        answer = await connection.answer(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000)
        assert answer.startswith(b"HTTP/1.1 400")


async def test_tls_serves_https_and_a_broken_handshake_takes_no_capacity(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("page", sans=(x509.DNSName("localhost"),))
    trusted = ssl.create_default_context(cafile=str(authority.ca_file))
    context = ServerTls(pair.cert_file, pair.key_file).context()
    async with listening(tls=context, max_connections=4) as port:
        for _ in range(6):  # more than all connections
            assert not await is_served(port)
        secure = {"ssl": trusted, "server_hostname": "localhost"}
        await until_served(port, **secure)
        async with connected(port, local_addr=("127.0.0.2", 0), **secure) as connection:
            assert (await connection.answer(GET)).endswith(b"https")


async def test_an_address_that_cannot_be_bound_is_an_error() -> None:
    for listen in ("127.0.0.1", "nowhere.invalid:1", "127.0.0.1:x"):
        with pytest.raises(UnavailableError, match="KERNELFARM_PAGE_LISTEN"):
            PageListener(APP, 8).start(listen)


async def test_closing_ends_open_connections() -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with listening() as port:
            connection = await stack.enter_async_context(connected(port))
            assert (await connection.answer(GET)).startswith(b"HTTP/1.1 200")
        assert await connection.answer() == b""
