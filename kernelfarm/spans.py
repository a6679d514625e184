"""Traces (OpenTelemetry): one trace of a request through all processes that serve it.

They are off, and opentelemetry is not imported, unless OTEL_EXPORTER_OTLP_ENDPOINT is set. The
other standard variables of OpenTelemetry apply: OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS,
OTEL_RESOURCE_ATTRIBUTES, ...

A span has a name, the time that it took, and few attributes: vendors, stages, statuses, sizes. It
never has keys of credentials or contents of tensors.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from kernelfarm.errors import CallerError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
HEADER = "traceparent"

_NEEDED = ("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "opentelemetry.sdk.trace")
_MAX_HEADER_CHARS = 128
"""A `traceparent` has 55 characters; later versions of its standard may append some."""
_EXPORT_TIMEOUT = "OTEL_EXPORTER_OTLP_TIMEOUT"
_EXPORT_TIMEOUT_S = "3"
_END_S = 3.0
"""How long the end of a process waits until its last spans are exported."""

_OFF = nullcontext()
"""Shared by all blocks while no spans are exported: each cache hit has such blocks."""

P = ParamSpec("P")
R = TypeVar("R")


class _State:
    """The export of this process; the exporter is made when the first span begins."""

    def __init__(self) -> None:
        self.service = ""
        self.provider: TracerProvider | None = None
        self.tracer: Tracer | None = None
        self.lock = threading.Lock()


_state = _State()


def start_export(service: str) -> bool:
    """Exports the spans of this process, if an endpoint is set; True if they are exported.

    Raises:
        CallerError: an endpoint is set, but opentelemetry is not installed.
    """
    if not os.environ.get(ENDPOINT):
        return False
    try:
        for name in _NEEDED:
            import_module(name)
    except ModuleNotFoundError as error:
        raise CallerError(
            f"{ENDPOINT} is set, but {error.name} is not installed: pip install"
            " 'kernelfarm[tracing]', or unset the variable"
        ) from error
    _state.service = service
    return True


def open_export() -> None:
    """Makes the exporter now, with its gRPC channel, instead of with the first span."""
    _tracer()


def end_export() -> None:
    """Exports what is left, for at most some seconds; later spans begin a new exporter."""
    with _state.lock:
        provider, _state.provider, _state.tracer = _state.provider, None, None
    if provider is not None:
        # The library's own limit is 30 s, and a collector that hangs must not delay a drain.
        ending = threading.Thread(target=provider.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(_END_S)


def drop_export() -> None:
    """Drops the exporter without using it, in a forked child; later spans begin a new one."""
    _state.lock = threading.Lock()
    _state.provider = _state.tracer = None


def is_on() -> bool:
    """True if this process exports spans."""
    return bool(_state.service)


def span(
    name: str, parent: str = "", **attributes: str | int | float
) -> AbstractContextManager[None]:
    """Records a span for a block, within the present span or that of a `traceparent`.

    If the block raises an error, the span names it.
    """
    return _recorded(name, parent, attributes) if _state.service else _OFF


@contextmanager
def _recorded(
    name: str, parent: str, attributes: Mapping[str, str | int | float]
) -> Iterator[None]:
    with _tracer().start_as_current_span(
        name, _context_of(parent) if parent else None, attributes=attributes, record_exception=False
    ):
        yield


class BegunSpan:
    """A span that ends by a call, for work that is no block: several of them may overlap."""

    __slots__ = ("_span", "trace_id", "traceparent")

    def __init__(self, name: str, parent: str = "", **attributes: str | int | float) -> None:
        """Begins a span within that of a `traceparent`, or within the present one."""
        self._span: Span | None = None
        self.traceparent = self.trace_id = ""
        if not _state.service:
            return
        from opentelemetry import trace  # noqa: PLC0415 -- only if traces are on

        context = _context_of(parent) if parent else None
        self._span = _tracer().start_span(name, context, attributes=attributes)
        carrier: dict[str, str] = {}
        _propagator().inject(carrier, trace.set_span_in_context(self._span))
        self.traceparent = carrier.get(HEADER, "")
        self.trace_id = trace.format_trace_id(self._span.get_span_context().trace_id)

    def end(self) -> None:
        """Ends the span; may be called twice."""
        span, self._span = self._span, None
        if span is not None:
            span.end()


def record(name: str, began_ns: int, ended_ns: int, parent: str = "") -> None:
    """Records a span that is over, within the present one or that of a `traceparent`.

    The times are nanoseconds of `time.monotonic_ns`, which all processes of a host share.
    """
    if not _state.service:
        return
    to_epoch_ns = time.time_ns() - time.monotonic_ns()
    context = _context_of(parent) if parent else None
    span = _tracer().start_span(name, context, start_time=began_ns + to_epoch_ns)
    span.end(ended_ns + to_epoch_ns)


def in_span(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that records a span for each call of a function or coroutine function."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def call_async(*args: P.args, **named: P.kwargs) -> Any:
                with span(name):
                    return await function(*args, **named)

            return cast(Callable[P, R], call_async)

        @wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            with span(name):
                return function(*args, **named)

        return call

    return decorate


class CallSpan:
    """The span of a call that a server serves; it is the present one in the call's own task."""

    __slots__ = ("_span", "trace_id")

    def __init__(self, method: str, metadata: Sequence[tuple[str, Any]], elapsed_s: float) -> None:
        """Begins a span that began `elapsed_s` ago; its parent is that of the call's headers."""
        from opentelemetry import context, trace  # noqa: PLC0415 -- only if traces are on

        began_ns = time.time_ns() - round(elapsed_s * 1e9)
        self._span: Span = _tracer().start_span(
            method.lstrip("/"),
            _context_of(_header(metadata)),
            kind=trace.SpanKind.SERVER,
            attributes={"rpc.system": "grpc"},
            start_time=began_ns,
        )
        # It stays attached: each call has a task of its own, whose context ends with it.
        context.attach(trace.set_span_in_context(self._span))
        self.trace_id = trace_id()

    def end(self, status: str) -> None:
        """Ends the span with the name of the call's gRPC status."""
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 -- only if traces are on

        self._span.set_attribute("rpc.grpc.status", status)
        if status != "OK":
            self._span.set_status(StatusCode.ERROR, status)
        self._span.end()


def traceparent() -> str:
    """The header that names the present span; empty if there is none."""
    if not _state.service:
        return ""
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get(HEADER, "")


def outgoing() -> tuple[tuple[str, str], ...] | None:
    """The headers by which a call belongs to the present span; None if there is none."""
    header = traceparent()
    return ((HEADER, header),) if header else None


def trace_id() -> str:
    """The id of the present trace, 32 hex digits; empty if there is none."""
    if not _state.service:
        return ""
    from opentelemetry import trace  # noqa: PLC0415 -- only if traces are on

    present = trace.get_current_span().get_span_context()
    return trace.format_trace_id(present.trace_id) if present.is_valid else ""


def _header(metadata: Sequence[tuple[str, Any]]) -> str:
    return next((str(value) for name, value in metadata if name == HEADER), "")


def _context_of(header: str) -> Context:
    """The context of a `traceparent`, whose sender is not trusted; empty if it is none."""
    from opentelemetry.context import Context  # noqa: PLC0415 -- only if traces are on

    if not header or len(header) > _MAX_HEADER_CHARS:
        return Context()
    found: Context = _propagator().extract({HEADER: header}, Context())
    return found


def _propagator() -> Any:
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 -- as above

    return tracecontext.TraceContextTextMapPropagator()


def _tracer() -> Tracer:
    tracer = _state.tracer
    if tracer is not None:
        return tracer
    with _state.lock:
        if _state.tracer is None:
            _state.provider = _provider(_state.service)
            _state.tracer = _state.provider.get_tracer("kernelfarm")
        return _state.tracer


def _provider(service: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415 -- as above
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 -- as above
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 -- as above
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 -- as above

    os.environ.setdefault(_EXPORT_TIMEOUT, _EXPORT_TIMEOUT_S)
    resource = Resource.create({"service.namespace": "kernelfarm", "service.name": service})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
