"""gRPC's own methods: health checks, open to all callers, and reflection, for identified callers.

Neither is logged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import grpc
from grpc.aio import ServicerContext

from kernelfarm.errors import KernelfarmError, NoMessageError, error_facts
from kernelfarm.service.collector import Collector
from kernelfarm.service.inbound.unauthenticated import UnauthenticatedCalls
from kernelfarm.service.malformed import parser_of
from kernelfarm.service.refuse import end_with
from kernelfarm.service.tenants.access import AccessControl
from kernelfarm.service.tracebacks import clear_tracebacks

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "ServicerContext[Any, Any]"

_MAX_REFLECTION_REQUESTS = 1000
"""Requests in one reflection stream; a client that lists a whole farm sends about twenty."""


def wrap_infrastructure(
    handler: Handler,
    method: str,
    access: AccessControl | None,
    unauthenticated: UnauthenticatedCalls,
    collector: Collector,
) -> Handler:
    """Wraps a handler of one of gRPC's own methods within the limits of unauthenticated calls."""
    parse = parser_of(handler.request_deserializer)
    serialize = handler.response_serializer

    async def receive(context: Context) -> Any:
        collector.count()
        body = await unauthenticated.take(context)
        body.release()  # it is small, and handled at once
        return parse(body.pop())

    if handler.request_streaming:
        stream = _reflection(handler.stream_stream, method, access, receive)
        return grpc.stream_stream_rpc_method_handler(stream, None, serialize)
    if handler.response_streaming:
        watch = _watch(handler.unary_stream, unauthenticated, receive)
        return grpc.stream_stream_rpc_method_handler(watch, None, serialize)
    check = _check(handler.unary_unary, receive)
    return grpc.stream_unary_rpc_method_handler(check, None, serialize)


def _check(behavior: Any, receive: Callable[[Context], Any]) -> Any:
    async def check(_: Any, context: Context) -> Any:
        try:
            request = await receive(context)
        except KernelfarmError as error:
            return _refuse(context, error)
        return await behavior(request, context)

    return check


def _watch(
    behavior: Any, unauthenticated: UnauthenticatedCalls, receive: Callable[[Context], Any]
) -> Any:
    async def watch(_: Any, context: Context) -> None:
        try:
            request = await receive(context)
            unauthenticated.begin_watch()
        except KernelfarmError as error:
            return _refuse(context, error)
        try:
            await behavior(request, context)
        finally:
            unauthenticated.end_watch()

    return watch


def _reflection(
    behavior: Any, method: str, access: AccessControl | None, receive: Callable[[Context], Any]
) -> Any:
    async def reflect(_: Any, context: Context) -> AsyncIterator[Any]:
        try:
            if access is not None:
                access.identify(method, tuple(context.invocation_metadata() or ()), context)
            async for response in behavior(_requests(context, receive), context):
                yield response
        except KernelfarmError as error:
            _refuse(context, error)

    return reflect


async def _requests(context: Context, receive: Callable[[Context], Any]) -> AsyncIterator[Any]:
    for _ in range(_MAX_REFLECTION_REQUESTS):
        try:
            yield await receive(context)
        except NoMessageError:
            return  # the client has sent its last request


def _refuse(context: Context, error: KernelfarmError) -> None:
    end_with(context, error_facts(error), "")
    clear_tracebacks(error)
