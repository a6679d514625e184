"""Requests that carry graphs, parsed without them: a graph is parsed where its work can be ended.

An envelope (`protos/kernelfarm/internal/v1/envelopes.proto`) has the numbers and types of the
public message, but its graph is bytes. Registered in the public message's place, it is what
handlers get. Parsers merge a message that occurs several times, which is to put its serialized
forms together; so the graph's field is repeated, and `graph_of` joins it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message

from kernelfarm.internal.v1 import envelopes_pb2
from kernelfarm.v1 import cache_service_pb2, compile_service_pb2


class _Parser:
    """Parses an envelope; it bears the public message's name in what is told of bad bytes."""

    def __init__(self, envelope: type[Message], message: type[Message]) -> None:
        self._parse = envelope.FromString
        self.__self__ = message  # as a bound `FromString` has it

    def __call__(self, data: bytes) -> Message:
        return self._parse(data)


_PARSERS: Mapping[tuple[str, str], _Parser] = {
    ("kernelfarm.v1.CompileService", "Compile"): _Parser(
        envelopes_pb2.CompileEnvelope, compile_service_pb2.CompileRequest
    ),
    ("kernelfarm.v1.CacheService", "ExplainMiss"): _Parser(
        envelopes_pb2.ExplainMissEnvelope, cache_service_pb2.ExplainMissRequest
    ),
}


def graph_of(
    envelope: envelopes_pb2.CompileEnvelope | envelopes_pb2.ExplainMissEnvelope,
) -> bytes | None:
    """The serialized graph that a request carries; None if it carries none."""
    pieces = envelope.graph
    if len(pieces) == 1:
        return bytes(pieces[0])
    return b"".join(pieces) if pieces else None


def with_envelopes(add: Callable[[Any], None]) -> Callable[[grpc.aio.Server], None]:
    """What registers a service as `add` does, with envelopes for requests that carry graphs."""

    def add_to(server: grpc.aio.Server) -> None:
        add(_Registrar(server))

    return add_to


class _Registrar:
    """Stands for a server while generated code registers its methods there."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Nothing: the same handlers come by name."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Registers a service's methods."""
        changed = {name: _changed(service, name, found) for name, found in handlers.items()}
        generic = grpc.method_handlers_generic_handler(service, changed)
        self._server.add_generic_rpc_handlers((generic,))
        self._server.add_registered_method_handlers(service, changed)


def _changed(service: str, method: str, handler: Any) -> Any:
    parser = _PARSERS.get((service, method))
    if parser is None:
        return handler
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(
            handler.unary_stream, parser, handler.response_serializer
        )
    return grpc.unary_unary_rpc_method_handler(
        handler.unary_unary, parser, handler.response_serializer
    )
