"""Serves the metrics of a process over HTTP, at `/metrics` of KERNELFARM_METRICS_LISTEN.

The server and its pages are those of prometheus_client. What is added are limits, because anyone
who reaches the address may call: few connections at once, a time limit for each, and few pages a
second. The TLS handshake is part of a connection's time, instead of delaying all others.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from kernelfarm.errors import CallerError, UnavailableError
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.metrics.declarations import BUILD_INFO
from kernelfarm.service.metrics.processes import ChildProcesses, CountedMetrics
from kernelfarm.service.rates import TokenBuckets
from kernelfarm.service.settings import ServiceSettings

PATH = "/metrics"

_CONNECTIONS = 8
"""Connections at once, of which each has a thread."""
_CONNECTION_S = 5.0
"""A connection may be silent for so long; if all are in use, one that is older is closed."""
_BURST, _PAGES_PER_S = 20, 5.0
_STOP_CHECK_S = 0.2

_collectors: list[Collector] = []

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@contextmanager
def metrics_endpoint(settings: ServiceSettings) -> Iterator[None]:
    """Serves the metrics of this process while the block runs, if the settings name an address.

    Raises:
        CallerError: the address or a TLS file cannot be used.
        UnavailableError: the address cannot be bound.
    """
    if not settings.metrics_listen:
        yield
        return
    host, port = _host_and_port(settings.metrics_listen)
    tls = _tls(settings)
    try:
        server = _BoundedServer(host, port, _limited(_registry()), tls)
    except OSError as error:
        raise UnavailableError(
            f"cannot serve metrics on {settings.metrics_listen}: {error.strerror};"
            " KERNELFARM_METRICS_LISTEN names the address"
        ) from error
    thread = threading.Thread(
        target=server.serve_forever, args=(_STOP_CHECK_S,), name="metrics", daemon=True
    )
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    get_logger().info(
        "metrics_listening",
        address=f"{shown}:{server.server_port}",
        is_encrypted=tls is not None,
    )
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        server.end_connections()


@contextmanager
def added_collector(collector: Collector) -> Iterator[None]:
    """Adds metrics that are read when this process is scraped, while the block runs."""
    _collectors.append(collector)
    try:
        yield
    finally:
        _collectors.remove(collector)


def state_build(service: str, toolchain: str = "") -> None:
    """States the version and the toolchain of this process among its metrics."""
    BUILD_INFO.labels(service, version("kernelfarm"), toolchain).set(1)


class _AddedCollectors(Collector):
    def collect(self) -> Iterator[Any]:
        for collector in tuple(_collectors):
            yield from collector.collect()


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(CountedMetrics())
    registry.register(_AddedCollectors())
    registry.register(ChildProcesses())
    ProcessCollector(registry=registry)
    return registry


def _limited(registry: CollectorRegistry) -> App:
    """The application of prometheus_client, for one path and a limited rate."""
    pages = make_wsgi_app(registry)
    rate: TokenBuckets[str] = TokenBuckets(_BURST, _PAGES_PER_S)
    one_at_a_time = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != PATH:
            return _refusal(start_response, "404 Not Found", f"the metrics are at {PATH}")
        with one_at_a_time:
            if not rate.take(""):
                limit = f"at most {_PAGES_PER_S:g} pages a second; scrape less often"
                return _refusal(start_response, "429 Too Many Requests", limit)
            page: Iterable[bytes] = pages(environ, start_response)
            return page

    return serve


def _refusal(start_response: Callable[..., Any], status: str, message: str) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{message}\n".encode()]


class _Handler(WSGIRequestHandler):
    timeout = _CONNECTION_S

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: callers decide how often they call."""


class _BoundedServer(ThreadingWSGIServer):
    """A server with few connections, which serve one request each."""

    request_queue_size = 16

    def __init__(
        self, host: str, port: int, app: App, tls: Callable[[], ssl.SSLContext] | None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.set_app(app)
        self._tls = tls
        self._lock = threading.Lock()
        self._began_s: dict[socket.socket, float] = {}

    def server_bind(self) -> None:
        """Binds without the look-up of the host's name that `http.server` does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a connection in a thread, or closes it if all threads are in use."""
        with self._lock:
            if is_admitted := self._may_serve():
                self._began_s[request] = time.monotonic()
        if is_admitted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves one connection; errors of its caller end it without a word."""
        used = request
        try:
            used.settimeout(_CONNECTION_S)
            if self._tls is not None:
                used = self._tls().wrap_socket(request, server_side=True)
                self._replace(request, used)
            self.finish_request(used, client_address)
        except OSError:
            pass  # the caller left, was too slow, or does not trust our certificate
        finally:
            with self._lock:
                self._began_s.pop(used, None)
            self.shutdown_request(used)

    def end_connections(self) -> None:
        """Ends the connections that are open; their threads close them."""
        with self._lock:
            for connection in self._began_s:
                _end(connection)

    def _may_serve(self) -> bool:
        """True if a connection may be served; closes the oldest one if it used its time."""
        if len(self._began_s) < _CONNECTIONS:
            return True
        oldest, began_s = next(iter(self._began_s.items()))
        if time.monotonic() - began_s < _CONNECTION_S:
            return False
        del self._began_s[oldest]
        _end(oldest)
        return True

    def _replace(self, request: socket.socket, used: socket.socket) -> None:
        with self._lock:
            self._began_s[used] = self._began_s.pop(request, time.monotonic())


def _end(connection: socket.socket) -> None:
    """Makes the thread that serves a connection end with an error."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _host_and_port(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 2**16):
        raise CallerError(
            f"KERNELFARM_METRICS_LISTEN is {listen!r}; expected HOST:PORT such as 127.0.0.1:9464,"
            " or nothing for no metrics"
        )
    return host.strip("[]"), int(port)


def _tls(settings: ServiceSettings) -> Callable[[], ssl.SSLContext] | None:
    """Makes the TLS context of a connection, so that renewed files are used; None without TLS."""
    files = settings.internal_server_tls()
    if files is None:
        if settings.metrics_client_ca_file is not None:
            raise CallerError(
                "KERNELFARM_METRICS_CLIENT_CA_FILE needs TLS: set KERNELFARM_INTERNAL_CERT_FILE,"
                " _KEY_FILE and _CA_FILE too"
            )
        return None

    def context() -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(files.cert_file, files.key_file)
        if settings.metrics_client_ca_file is not None:
            made.load_verify_locations(settings.metrics_client_ca_file)
            made.verify_mode = ssl.CERT_REQUIRED
        return made

    try:
        context()
    except OSError as error:
        raise CallerError(
            f"cannot use {files.cert_file}, {files.key_file} or the CA of"
            f" KERNELFARM_METRICS_CLIENT_CA_FILE for the metrics' TLS: {error}"
        ) from error
    return context
