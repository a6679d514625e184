"""The one place where errors become gRPC status, and where each call gets its id and log line."""

from __future__ import annotations

import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from grpc.aio import AbortError, ServicerContext
from structlog.contextvars import bind_contextvars, get_contextvars

from kernelfarm.errors import (
    CallerError,
    ErrorFacts,
    InternalError,
    KernelfarmError,
    NotFoundError,
    bounded,
    error_facts,
)
from kernelfarm.service.collector import Collector
from kernelfarm.service.inbound.bodies import Inbound, InboundLimits, RequestBody
from kernelfarm.service.inbound.connections import Connections
from kernelfarm.service.inbound.unauthenticated import UnauthenticatedCalls
from kernelfarm.service.infrastructure import wrap_infrastructure
from kernelfarm.service.logs.call_log import CallLog
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.malformed import Parse, parser_of
from kernelfarm.service.refuse import REQUEST_ID_HEADER, end_with
from kernelfarm.service.settings import DEFAULT_MAX_MESSAGE_BYTES
from kernelfarm.service.tenants.access import AccessControl
from kernelfarm.service.tenants.authentication import Metadata
from kernelfarm.service.tenants.identity import Identity, bind_identity
from kernelfarm.service.tracebacks import clear_tracebacks

# Ids reach logs and trailers: anything else than a short plain word is replaced.
_PLAIN_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")

_INFRASTRUCTURE = "/grpc."

_CONNECTIONS = 16_384
_HELD_BYTES = 512 * 1024 * 1024

# In quotes: these classes are generic for the type checker only.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"


class EdgeInterceptor(grpc.aio.ServerInterceptor):
    """Binds the request id, translates errors to rich status, tells the log of each call.

    With `access`, callers are identified first; without, whoever connects is served. Nothing of a
    request's body is received before: every method is registered as one that streams requests,
    which looks the same on the wire, and whose behavior reads its message itself.
    """

    def __init__(
        self,
        access: AccessControl | None = None,
        call_log: CallLog | None = None,
        limits: InboundLimits | None = None,
        connections: Connections | None = None,
    ) -> None:
        limits = limits or InboundLimits(DEFAULT_MAX_MESSAGE_BYTES, _HELD_BYTES, _HELD_BYTES)
        self._edge = Edge(
            access,
            call_log or CallLog(),
            Inbound(limits),
            UnauthenticatedCalls(limits),
            connections or Connections(_CONNECTIONS),
        )
        self._collector = Collector()
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """The method's handler, wrapped; unary and server-streaming methods of our own services."""
        self._collector.count()
        method = handler_call_details.method
        if (wrapped := self._wrapped.get(method)) is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if method.startswith(_INFRASTRUCTURE):
            wrapped = wrap_infrastructure(
                handler, method, self._edge.access, self._edge.unauthenticated
            )
        else:
            wrapped = _wrap(handler, method, self._edge)
        self._wrapped[method] = wrapped
        return wrapped


@dataclass(frozen=True, slots=True)
class Edge:
    """What every call passes: who may call (None: anybody), how much may arrive, what is logged."""

    access: AccessControl | None
    call_log: CallLog
    inbound: Inbound
    unauthenticated: UnauthenticatedCalls
    connections: Connections


def _wrap(handler: Handler, method: str, edge: Edge) -> Handler:
    if handler.request_streaming:
        raise InternalError(f"{method} streams requests, which no service of ours does")
    parse = parser_of(handler.request_deserializer)
    serialize = _unless_ready(handler.response_serializer or bytes)
    if handler.response_streaming:
        stream = _streaming(handler.unary_stream, method, edge, parse)
        return grpc.stream_stream_rpc_method_handler(stream, None, serialize)
    answer = _unary(handler.unary_unary, method, edge, parse)
    return grpc.stream_unary_rpc_method_handler(answer, None, serialize)


def _unless_ready(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """A serializer that passes bytes: a behavior may keep an answer ready to be sent."""

    def serialize_unless_ready(message: Any) -> bytes:
        return message if type(message) is bytes else serialize(message)

    return serialize_unless_ready


def _unary(behavior: Any, method: str, edge: Edge, parse: Parse) -> Any:
    async def answer(_: Any, context: ServicerContext[Any, Any]) -> Any:
        call = _Call(edge, method, context)
        try:
            # Named by nobody here: a refusal's frames must not keep it.
            response = await behavior(await call.request(parse), context)
        except BaseException as error:
            if not call.end_with(error):
                raise
            return None
        call.end("OK")
        return response

    return answer


def _streaming(behavior: Any, method: str, edge: Edge, parse: Parse) -> Any:
    async def answer(_: Any, context: ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        call = _Call(edge, method, context)
        try:
            responses = behavior(await call.request(parse), context)
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

    return answer


class _Call:
    """Runs one call: ids, who calls, the log line, the translation of whatever it raises.

    No context manager: every hit passes here.
    """

    __slots__ = (
        "_body",
        "_context",
        "_edge",
        "_identity",
        "_is_bound",
        "_metadata",
        "_method",
        "_peer",
        "_started_s",
    )

    def __init__(self, edge: Edge, method: str, context: ServicerContext[Any, Any]) -> None:
        self._started_s = time.monotonic()
        self._edge = edge
        self._method = method
        self._context = context
        self._metadata: Metadata = tuple(context.invocation_metadata() or ())
        self._identity: Identity | None = None
        self._body: RequestBody | None = None
        self._is_bound = False
        self._peer = ""

    async def request(self, parse: Parse) -> Any:
        """The message, received once its sender is known.

        Raises:
            UnauthenticatedError: nobody that this farm knows calls.
            FarmFullError, BodyTooSlowError: see `Inbound.take`.
            MalformedMessageError: the request is no message.
        """
        edge, context, sender = self._edge, self._context, ""
        if edge.access is not None:
            self._identity = identity = edge.access.identify(self._method, self._metadata, context)
            bind_identity(identity)
            sender = identity.tenant
            if not identity.roles:
                self._body = await edge.unauthenticated.take(context)
        if self._body is None:
            self._peer = context.peer()
            edge.connections.begin(self._peer, sender)
            self._body = await edge.inbound.take(sender, context.read)
        request = parse(self._body.pop())
        self._bind(_plain_id(getattr(request, "request_id", "")))
        return request

    def end(self, status: str) -> None:
        """Ends the call."""
        self._release()
        self._log_end(status)

    def end_with(self, error: BaseException) -> bool:
        """Ends the call with an error; True if that became its status, and goes no further."""
        self._release()
        try:
            if not self._is_bound:
                self._bind("")
            if isinstance(error, Exception) and not isinstance(error, AbortError):
                self._translate(error)
                return True
        finally:
            self._log_end(_status_of(error))
        return False

    def _bind(self, request_id: str) -> None:
        """Names the call in the log, for good: each runs in a task, so in a context of its own."""
        self._is_bound = True
        names = {"request_id": request_id or self._header_id(), "method": self._method}
        identity = self._identity
        if identity is not None and identity.credential:
            names["tenant"], names["credential"] = identity.tenant, identity.credential
        bind_contextvars(**names)

    def _header_id(self) -> str:
        """The id that the call's headers bear, or a new one: unique, not secret."""
        for key, value in self._metadata:
            if key == REQUEST_ID_HEADER:
                if request_id := _plain_id(value):
                    return request_id
                break
        return f"{random.getrandbits(128):032x}"

    def _release(self) -> None:
        if self._body is not None:
            self._body.release()
        if self._peer:
            self._edge.connections.end(self._peer)

    def _log_end(self, status: str) -> None:
        self._edge.call_log.done(self._method, status, time.monotonic() - self._started_s)

    def _translate(self, error: Exception) -> None:
        facts = error_facts(error)
        _log_failure(error, facts)
        clear_tracebacks(error)
        if self._body is not None and isinstance(error, CallerError) and _is_costly(error):
            self._edge.inbound.charge_failure(self._body.sender)
        if self._edge.access is not None:
            tenant = self._identity.tenant if self._identity else ""
            self._edge.access.refusals.count(tenant, error)
        end_with(self._context, facts, current_request_id())


def _is_costly(error: CallerError) -> bool:
    """Whether finding the mistake took work; what is not there is found out by a look-up."""
    return not error.was_cached and not isinstance(error, NotFoundError)


def _plain_id(candidate: object) -> str:
    """The caller's id if it is a plain word, else nothing."""
    is_plain = isinstance(candidate, str) and candidate and _PLAIN_ID.fullmatch(candidate)
    return str(candidate) if is_plain else ""


def _status_of(error: BaseException) -> str:
    if isinstance(error, AbortError):
        return "ABORTED"
    return error_facts(error).status if isinstance(error, Exception) else "CANCELLED"


def _log_failure(error: Exception, facts: ErrorFacts) -> None:
    """Our bugs with their trace, farm trouble as a warning, callers' mistakes as information."""
    if isinstance(error, CallerError):
        get_logger().info("call_refused", reason=facts.reason, message=facts.message)
    elif isinstance(error, KernelfarmError) and not isinstance(error, InternalError):
        get_logger().warning("call_unavailable", reason=facts.reason, message=facts.message)
    else:
        get_logger().error("call_failed", message=bounded(str(error)), exc_info=error)


def current_request_id() -> str:
    """The id of the call that this task serves; empty outside of a call."""
    return str(get_contextvars().get("request_id", ""))
