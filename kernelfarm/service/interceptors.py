"""The one place where errors become gRPC status, and where each call gets its id and log line."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import structlog
from grpc.aio import AbortError, ServicerContext

from kernelfarm.errors import CallerError, InternalError, KernelfarmError, error_facts
from kernelfarm.service.access import Access
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
        async with _edge(method, request, context, edge):
            return await behavior(_checked(request), context)

    return answer


def _streaming(behavior: Any, method: str, edge: Edge) -> Any:
    async def answer(request: Any, context: ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        async with (
            _edge(method, request, context, edge),
            aclosing(behavior(_checked(request), context)) as responses,
        ):
            async for response in responses:
                yield response

    return answer


def _checked(request: Any) -> Any:
    if isinstance(request, Malformed):
        raise request.error()
    return request


@asynccontextmanager
async def _edge(
    method: str, request: Any, context: ServicerContext[Any, Any], edge: Edge
) -> AsyncIterator[None]:
    """Runs one call: ids, who calls, the log line, the translation of whatever it raises."""
    request_id = _request_id(request, context)
    access = edge.access
    started_s = time.monotonic()
    status = "CANCELLED"
    # Bound for good: each call runs in a task, and so in a context, of its own.
    structlog.contextvars.bind_contextvars(request_id=request_id, method=method)
    identity: Identity | None = None
    try:
        if access is not None:
            identity = _identified(method, context, access)
        yield
        status = "OK"
    except AbortError:
        status = "ABORTED"
        raise
    except Exception as error:
        status = error_facts(error).status
        _log_failure(error)
        if access is not None:
            access.refusals.count(identity.tenant if identity else "", error)
        await _abort(context, error, request_id)
    finally:
        edge.call_log.done(method, status, time.monotonic() - started_s)


def _identified(method: str, context: ServicerContext[Any, Any], access: Access) -> Identity:
    metadata = context.invocation_metadata() or ()
    identity = access.identify(method, metadata, context.auth_context(), context.peer())
    bind_identity(identity)
    if identity.credential:
        structlog.contextvars.bind_contextvars(
            tenant=identity.tenant, credential=identity.credential
        )
    return identity


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


def _request_id(request: Any, context: ServicerContext[Any, Any]) -> str:
    """The caller's id from the message or the header if it is a plain word, else a new one."""
    header = next((v for k, v in context.invocation_metadata() or () if k == REQUEST_ID_HEADER), "")
    for candidate in (getattr(request, "request_id", ""), header):
        if isinstance(candidate, str) and _PLAIN_ID.fullmatch(candidate):
            return candidate
    return uuid.uuid4().hex


def current_request_id() -> str:
    """The id of the call that this task serves; empty outside of a call."""
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))
