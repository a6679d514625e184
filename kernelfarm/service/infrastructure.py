"""Health and reflection: neither reaches the log; health is open, reflection for who may call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import grpc
from grpc.aio import ServicerContext

from kernelfarm.errors import KernelfarmError, NoMessageError, error_facts
from kernelfarm.service.inbound.unauthenticated import UnauthenticatedCalls
from kernelfarm.service.malformed import parser_of
from kernelfarm.service.refuse import end_with
from kernelfarm.service.tenants.access import AccessControl
from kernelfarm.service.tracebacks import clear_tracebacks

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "ServicerContext[Any, Any]"

_MAX_REFLECTION_REQUESTS = 1000
"""Questions in one stream of reflection; a client that lists a whole farm asks some twenty."""


def wrap_infrastructure(
    handler: Handler,
    method: str,
    access: AccessControl | None,
    unauthenticated: UnauthenticatedCalls,
) -> Handler:
    """The handler of one of gRPC's own methods, which receives no more than strangers may send."""
    parse = parser_of(handler.request_deserializer)
    serialize = handler.response_serializer

    async def ask(context: Context) -> Any:
        body = await unauthenticated.take(context)
        body.release()  # small, and answered at once
        return parse(body.pop())

    if handler.request_streaming:
        stream = _reflection(handler.stream_stream, method, access, ask)
        return grpc.stream_stream_rpc_method_handler(stream, None, serialize)
    if handler.response_streaming:
        watch = _watch(handler.unary_stream, unauthenticated, ask)
        return grpc.stream_stream_rpc_method_handler(watch, None, serialize)
    return grpc.stream_unary_rpc_method_handler(_check(handler.unary_unary, ask), None, serialize)


def _check(behavior: Any, ask: Callable[[Context], Any]) -> Any:
    async def check(_: Any, context: Context) -> Any:
        try:
            request = await ask(context)
        except KernelfarmError as error:
            return _refuse(context, error)
        return await behavior(request, context)

    return check


def _watch(
    behavior: Any, unauthenticated: UnauthenticatedCalls, ask: Callable[[Context], Any]
) -> Any:
    async def watch(_: Any, context: Context) -> None:
        try:
            request = await ask(context)
            unauthenticated.begin_watch()
        except KernelfarmError as error:
            return _refuse(context, error)
        try:
            await behavior(request, context)
        finally:
            unauthenticated.end_watch()

    return watch


def _reflection(
    behavior: Any, method: str, access: AccessControl | None, ask: Callable[[Context], Any]
) -> Any:
    async def reflect(_: Any, context: Context) -> AsyncIterator[Any]:
        try:
            if access is not None:
                access.identify(method, tuple(context.invocation_metadata() or ()), context)
            async for response in behavior(_requests(context, ask), context):
                yield response
        except KernelfarmError as error:
            _refuse(context, error)

    return reflect


async def _requests(context: Context, ask: Callable[[Context], Any]) -> AsyncIterator[Any]:
    for _ in range(_MAX_REFLECTION_REQUESTS):
        try:
            yield await ask(context)
        except NoMessageError:
            return  # the client asks no more


def _refuse(context: Context, error: KernelfarmError) -> None:
    end_with(context, error_facts(error), "")
    clear_tracebacks(error)
