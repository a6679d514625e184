"""The one place where errors become gRPC status, and where each call gets its id and log line."""

from __future__ import annotations

import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

import grpc
from grpc.aio import AbortError, ServicerContext
from structlog.contextvars import bind_contextvars, get_contextvars

from kernelfarm.errors import CallerError, InternalError, KernelfarmError, error_facts
from kernelfarm.service.access import Access
from kernelfarm.service.authentication import Metadata
from kernelfarm.service.call_log import CallLog
from kernelfarm.service.identity import Identity, bind_identity
from kernelfarm.service.logs import get_logger
from kernelfarm.service.malformed import Malformed, parse_or_mark
from kernelfarm.wire.status import DETAILS_TRAILER, status_code, status_details

REQUEST_ID_HEADER = "x-request-id"

# Ids reach logs and trailers: anything else than a short plain word is replaced.
_PLAIN_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")

# Health and reflection answer for themselves and would flood the log.
_INFRASTRUCTURE = "/grpc."

# In quotes: these classes are generic for the type checker only.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"


class EdgeInterceptor(grpc.aio.ServerInterceptor):
    """Binds the request id, translates errors to rich status, tells the log of each call.

    With `access`, callers are identified first; without, whoever connects is served.
    """

    def __init__(self, access: Access | None = None, call_log: CallLog | None = None) -> None:
        self._edge = Edge(access, call_log or CallLog())
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """The method's handler, wrapped; unary and server-streaming methods of our own services."""
        method = handler_call_details.method
        if (wrapped := self._wrapped.get(method)) is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(_INFRASTRUCTURE):
            return handler
        if handler.request_streaming:
            raise InternalError(f"{method} streams requests, which no service of ours does")
        wrapped = self._wrapped[method] = self._wrap(handler, method)
        return wrapped

    def _wrap(self, handler: Handler, method: str) -> Handler:
        parse = parse_or_mark(handler.request_deserializer or bytes)
        serialize = _unless_ready(handler.response_serializer or bytes)
        if handler.response_streaming:
            answer = _streaming(handler.unary_stream, method, self._edge)
            return grpc.unary_stream_rpc_method_handler(answer, parse, serialize)
        answer = _unary(handler.unary_unary, method, self._edge)
        return grpc.unary_unary_rpc_method_handler(answer, parse, serialize)


@dataclass(frozen=True, slots=True)
class Edge:
    """What every call passes: who may call (None: anybody), and what the log tells of it."""

    access: Access | None
    call_log: CallLog


def _unless_ready(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """A serializer that passes bytes: a behavior may keep an answer ready to be sent."""

    def serialize_unless_ready(message: Any) -> bytes:
        return message if type(message) is bytes else serialize(message)

    return serialize_unless_ready


def _unary(behavior: Any, method: str, edge: Edge) -> Any:
    async def answer(request: Any, context: ServicerContext[Any, Any]) -> Any:
        async with _Call(edge, method, request, context) as call:
            call.admit()
            return await behavior(request, context)

    return answer


def _streaming(behavior: Any, method: str, edge: Edge) -> Any:
    async def answer(request: Any, context: ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        async with _Call(edge, method, request, context) as call:
            call.admit()
            async with aclosing(behavior(request, context)) as responses:
                async for response in responses:
                    yield response

    return answer


class _Call:
    """Runs one call: ids, who calls, the log line, the translation of whatever it raises.

    A class instead of a generator: every hit passes here.
    """

    __slots__ = ("_context", "_edge", "_identity", "_metadata", "_method", "_request", "_started_s")

    def __init__(
        self, edge: Edge, method: str, request: Any, context: ServicerContext[Any, Any]
    ) -> None:
        self._edge = edge
        self._method = method
        self._request = request
        self._context = context
        self._metadata: Metadata = tuple(context.invocation_metadata() or ())
        self._identity: Identity | None = None
        self._started_s = 0.0

    async def __aenter__(self) -> _Call:
        self._started_s = time.monotonic()
        # Bound for good: each call runs in a task, and so in a context, of its own.
        bind_contextvars(request_id=self._request_id(), method=self._method)
        return self

    def admit(self) -> None:
        """Lets the call in.

        Raises:
            UnauthenticatedError: nobody that this farm knows calls.
            MalformedMessageError: the request is no message.
        """
        access = self._edge.access
        if access is not None:
            self._identity = access.identify(self._method, self._metadata, self._context)
            _bind(self._identity)
        if isinstance(self._request, Malformed):
            raise self._request.error()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        status = "OK"
        try:
            if error is not None:
                status = _status_of(error)
                if isinstance(error, Exception) and not isinstance(error, AbortError):
                    await self._translate(error)
        finally:
            self._edge.call_log.done(self._method, status, time.monotonic() - self._started_s)

    async def _translate(self, error: Exception) -> None:
        _log_failure(error)
        if self._edge.access is not None:
            tenant = self._identity.tenant if self._identity else ""
            self._edge.access.refusals.count(tenant, error)
        await _abort(self._context, error, current_request_id())

    def _request_id(self) -> str:
        """The caller's id from the message or the header if it is a plain word, else a new one."""
        header = next((value for key, value in self._metadata if key == REQUEST_ID_HEADER), "")
        for candidate in (getattr(self._request, "request_id", ""), header):
            if isinstance(candidate, str) and candidate and _PLAIN_ID.fullmatch(candidate):
                return candidate
        # Unique, not secret: no entropy of the system is needed.
        return f"{random.getrandbits(128):032x}"


def _status_of(error: BaseException) -> str:
    if isinstance(error, AbortError):
        return "ABORTED"
    return error_facts(error).status if isinstance(error, Exception) else "CANCELLED"


def _bind(identity: Identity) -> None:
    bind_identity(identity)
    if identity.credential:
        bind_contextvars(tenant=identity.tenant, credential=identity.credential)


def _log_failure(error: Exception) -> None:
    """Our bugs with their trace, farm trouble as a warning, callers' mistakes as information."""
    message = str(error)
    if isinstance(error, CallerError):
        get_logger().info("call_refused", reason=error.reason, message=message)
    elif isinstance(error, KernelfarmError) and not isinstance(error, InternalError):
        get_logger().warning("call_unserved", reason=error.reason, message=message)
    else:
        get_logger().error("call_failed", message=message, exc_info=error)


async def _abort(context: ServicerContext[Any, Any], error: Exception, request_id: str) -> None:
    facts = error_facts(error)
    trailers = (
        # What was answered is not repeated by the caller's channel, only what never arrived.
        ("grpc-retry-pushback-ms", "-1"),
        (DETAILS_TRAILER, status_details(facts, request_id)),
        (REQUEST_ID_HEADER, request_id),
    )
    await context.abort(status_code(facts), facts.message, trailers)


def current_request_id() -> str:
    """The id of the call that this task serves; empty outside of a call."""
    return str(get_contextvars().get("request_id", ""))
