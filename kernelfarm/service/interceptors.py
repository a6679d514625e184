"""The one place where errors become gRPC status, and where each call gets its id and log line."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias

import grpc
import structlog
from grpc.aio import AbortError, ServicerContext

from kernelfarm.errors import CallerError, InternalError, KernelfarmError, error_facts
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
    """Binds the request id, translates errors to rich status, writes one line for each call."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """The method's handler, wrapped; unary and server-streaming methods of our own services."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(_INFRASTRUCTURE):
            return handler
        if handler.request_streaming:
            raise InternalError(f"{method} streams requests, which no service of ours does")
        parse = parse_or_mark(handler.request_deserializer or bytes)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _streaming(handler.unary_stream, method), parse, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            _unary(handler.unary_unary, method), parse, handler.response_serializer
        )


def _unary(behavior: Any, method: str) -> Any:
    async def answer(request: Any, context: ServicerContext[Any, Any]) -> Any:
        async with _edge(method, request, context):
            return await behavior(_checked(request), context)

    return answer


def _streaming(behavior: Any, method: str) -> Any:
    async def answer(request: Any, context: ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        async with (
            _edge(method, request, context),
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
    method: str, request: Any, context: ServicerContext[Any, Any]
) -> AsyncIterator[None]:
    """Runs one call: ids, the log line, and the translation of whatever it raises."""
    request_id = _request_id(request, context)
    started = time.monotonic()
    status = "CANCELLED"
    # Bound for good: each call runs in a task, and so in a context, of its own.
    structlog.contextvars.bind_contextvars(request_id=request_id, method=method)
    try:
        yield
        status = "OK"
    except AbortError:
        status = "ABORTED"
        raise
    except Exception as error:
        status = error_facts(error).status
        _log_failure(error)
        await _abort(context, error, request_id)
    finally:
        elapsed_ms = round((time.monotonic() - started) * 1e3, 3)
        get_logger().info("call_done", status=status, elapsed_ms=elapsed_ms)


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
