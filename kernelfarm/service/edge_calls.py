"""Translates errors to gRPC status, and gives each call its request id and log line."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from grpc.aio import AbortError, ServicerContext

from kernelfarm import spans
from kernelfarm.bounded_text import bounded
from kernelfarm.errors import (
    CallerError,
    ErrorFacts,
    InternalError,
    KernelfarmError,
    NotFoundError,
    error_facts,
)
from kernelfarm.service.call_names import CallNames, bind_call_names, current_request_id
from kernelfarm.service.call_statistics import CallStatistics
from kernelfarm.service.collector import Collector
from kernelfarm.service.inbound.bodies import Inbound, InboundLimits, RequestBody
from kernelfarm.service.inbound.connections import Connections
from kernelfarm.service.inbound.unauthenticated import UnauthenticatedCalls
from kernelfarm.service.infrastructure import wrap_infrastructure
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.malformed import Parse, has_request_id, parser_of
from kernelfarm.service.metrics.declarations import CALL_SECONDS
from kernelfarm.service.refuse import end_with
from kernelfarm.service.settings import DEFAULT_MAX_MESSAGE_BYTES
from kernelfarm.service.tenants.access import AccessControl
from kernelfarm.service.tenants.authentication import Metadata
from kernelfarm.service.tenants.identity import Identity, bind_identity
from kernelfarm.service.tracebacks import clear_tracebacks

_INFRASTRUCTURE = "/grpc."

_CONNECTIONS = 16_384
_HELD_BYTES = 512 * 1024 * 1024

# In quotes: these classes are generic for the type checker only.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class EdgeRegistrar:
    """Takes the place of a server in the functions that add services, and wraps each method.

    The wrapped methods identify callers, receive request bodies, translate errors to gRPC status
    and log calls. Without `access` every caller is served. The body of a request is received after
    its caller was identified: each method is registered as one that streams requests, which is the
    same on the wire, and its behavior reads the message itself. An interceptor could do this too,
    but it would run for each call.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        access: AccessControl | None = None,
        statistics: CallStatistics | None = None,
        limits: InboundLimits | None = None,
        connections: Connections | None = None,
    ) -> None:
        limits = limits or InboundLimits(DEFAULT_MAX_MESSAGE_BYTES, _HELD_BYTES, _HELD_BYTES)
        self._edge = Edge(
            access,
            statistics or CallStatistics(CALL_SECONDS),
            Inbound(limits),
            UnauthenticatedCalls(limits),
            connections or Connections(_CONNECTIONS),
            Collector(),
        )
        self._server = server

    def record(self) -> None:
        """Records what happened since the last time in this process's metrics, and in its log."""
        self._edge.statistics.flush()
        self._edge.inbound.record_metrics()

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Does nothing: the same handlers are registered by name."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Registers the methods of a service."""
        wrapped = {
            name: self._wrap(handler, f"/{service}/{name}") for name, handler in handlers.items()
        }
        generic = grpc.method_handlers_generic_handler(service, wrapped)
        self._server.add_generic_rpc_handlers((generic,))
        self._server.add_registered_method_handlers(service, wrapped)

    def _wrap(self, handler: Handler, method: str) -> Handler:
        edge = self._edge
        if method.startswith(_INFRASTRUCTURE):
            return wrap_infrastructure(
                handler, method, edge.access, edge.unauthenticated, edge.collector
            )
        return _wrap(handler, method, edge)


@dataclass(frozen=True, slots=True)
class Edge:
    """What all calls of a server share.

    Without `access` every caller is served.
    """

    access: AccessControl | None
    statistics: CallStatistics
    inbound: Inbound
    unauthenticated: UnauthenticatedCalls
    connections: Connections
    collector: Collector


@dataclass(frozen=True, slots=True)
class _Method:
    """A method of a server; `states_id` is True if its requests have a field `request_id`."""

    name: str
    edge: Edge
    parse: Parse
    states_id: bool


def _wrap(handler: Handler, method: str, edge: Edge) -> Handler:
    if handler.request_streaming:
        raise InternalError(f"{method} streams requests; expected a method with one request")
    states_id = has_request_id(handler.request_deserializer)
    called = _Method(method, edge, parser_of(handler.request_deserializer), states_id)
    serialize = _unless_serialized(handler.response_serializer or bytes)
    if handler.response_streaming:
        stream = _streaming(handler.unary_stream, called)
        return grpc.stream_stream_rpc_method_handler(stream, None, serialize)
    unary = _unary(handler.unary_unary, called)
    return grpc.stream_unary_rpc_method_handler(unary, None, serialize)


def _unless_serialized(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """A serializer that passes bytes through, because a behavior may cache serialized responses."""

    def serialize_message(message: Any) -> bytes:
        return message if type(message) is bytes else serialize(message)

    return serialize_message


def _unary(behavior: Any, method: _Method) -> Any:
    async def serve(_: Any, context: ServicerContext[Any, Any]) -> Any:
        call = _Call(method, context)
        try:
            # Without a variable for the request, the frames of an error do not keep it in memory.
            response = await behavior(await call.request(), context)
        except BaseException as error:
            if not call.end_with(error):
                raise
            return None
        call.end("OK")
        return response

    return serve


def _streaming(behavior: Any, method: _Method) -> Any:
    async def serve(_: Any, context: ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        call = _Call(method, context)
        try:
            responses = behavior(await call.request(), context)
            try:
                async for response in responses:
                    yield response
            finally:
                await responses.aclose()
        except BaseException as error:
            if not call.end_with(error):
                raise
            return
        call.end("OK")

    return serve


class _Call:
    """Runs one call: request id, caller, log line, translation of errors.

    It is not a context manager, because each cache hit runs this code.
    """

    __slots__ = (
        "_begun_at",
        "_body",
        "_context",
        "_edge",
        "_identity",
        "_metadata",
        "_method",
        "_names",
        "_peer",
        "_span",
        "_started_s",
    )

    def __init__(self, method: _Method, context: ServicerContext[Any, Any]) -> None:
        self._started_s = time.monotonic()
        self._edge = method.edge
        method.edge.collector.count()
        self._method = method
        self._context = context
        self._metadata: Metadata = tuple(context.invocation_metadata() or ())
        self._identity: Identity | None = None
        self._body: RequestBody | None = None
        self._names: CallNames | None = None
        self._peer = self._begun_at = ""
        self._span: spans.CallSpan | None = None

    async def request(self) -> Any:
        """Identifies the caller, then receives its message.

        Raises:
            UnauthenticatedError: the caller's credentials belong to no tenant of this farm.
            FarmFullError, BodyTooSlowError: see `Inbound.take`.
            MalformedMessageError: the bytes are not a message of the expected type.
        """
        edge, context, sender = self._edge, self._context, ""
        if edge.access is not None:
            self._identity = identity = edge.access.identify(
                self._method.name, self._metadata, self
            )
            bind_identity(identity)
            sender = identity.tenant
            if not identity.roles:
                self._body = await edge.unauthenticated.take(context)
        if self._body is None:
            self._begun_at = self.peer()
            edge.connections.begin(self._begun_at, sender)
            self._body = await edge.inbound.take(sender, context.read)
        method = self._method
        request = method.parse(self._body.pop())
        self._bind(request.request_id if method.states_id else "")
        return request

    def peer(self) -> str:
        """The caller's address, which gRPC would find again for each call of its `peer`."""
        if not self._peer:
            self._peer = self._context.peer()
        return self._peer

    def auth_context(self) -> Any:
        """What the connection's certificates say about the caller."""
        return self._context.auth_context()

    def end(self, status: str) -> None:
        """Ends a call that succeeded."""
        self._release()
        self._log_end(status)

    def end_with(self, error: BaseException) -> bool:
        """Ends the call with an error; False if the error must be raised again."""
        self._release()
        try:
            if self._names is None:
                self._bind("")
            if isinstance(error, Exception) and not isinstance(error, AbortError):
                self._translate(error)
                return True
        finally:
            self._log_end(_status_of(error))
        return False

    def _bind(self, request_id: object) -> None:
        """Gives the call its names, and begins its span."""
        more = {}
        if spans.is_on():
            elapsed_s = time.monotonic() - self._started_s
            self._span = spans.CallSpan(self._method.name, self._metadata, elapsed_s)
            more["trace_id"] = self._span.trace_id
        identity = self._identity
        if identity is not None and identity.credential:
            more["tenant"], more["credential"] = identity.tenant, identity.credential
        self._names = CallNames(self._method.name, request_id, self._metadata, more)
        bind_call_names(self._names)

    def _release(self) -> None:
        if self._body is not None:
            self._body.release()
        if self._begun_at:
            self._edge.connections.end(self._begun_at)

    def _log_end(self, status: str) -> None:
        if self._span is not None:
            self._span.end(status)
        elapsed_s = time.monotonic() - self._started_s
        self._edge.statistics.add(self._method.name, status, elapsed_s)

    def _translate(self, error: Exception) -> None:
        facts = error_facts(error)
        _log_failure(error, facts)
        clear_tracebacks(error)
        if self._body is not None and isinstance(error, CallerError) and _is_costly(error):
            self._edge.inbound.charge_failure(self._body.sender)
        if self._edge.access is not None:
            tenant = self._identity.tenant if self._identity else ""
            self._edge.access.refusals.count(tenant, error)
        end_with(self._context, facts, current_request_id(), spans.trace_id())


def _is_costly(error: CallerError) -> bool:
    """Whether finding the mistake took work; a missing key or blob costs only a look-up."""
    return not error.was_cached and not isinstance(error, NotFoundError)


def _status_of(error: BaseException) -> str:
    if isinstance(error, AbortError):
        return "ABORTED"
    return error_facts(error).status if isinstance(error, Exception) else "CANCELLED"


def _log_failure(error: Exception, facts: ErrorFacts) -> None:
    """Logs our bugs as errors with a trace, unavailability as warnings, other errors as info."""
    if isinstance(error, CallerError):
        get_logger().info("call_refused", reason=facts.reason, message=facts.message)
    elif isinstance(error, KernelfarmError) and not isinstance(error, InternalError):
        get_logger().warning("call_unavailable", reason=facts.reason, message=facts.message)
    else:
        get_logger().error("call_failed", message=bounded(str(error)), exc_info=error)
