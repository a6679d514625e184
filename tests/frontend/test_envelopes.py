"""Envelopes are the public messages, byte for byte, with their graphs left as bytes."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from frontend_svc.envelopes import graph_of
from kernelfarm.internal.v1.envelopes_pb2 import CompileEnvelope, ExplainMissEnvelope
from kernelfarm.v1 import graph_pb2
from kernelfarm.v1.cache_service_pb2 import ExplainMissRequest
from kernelfarm.v1.compile_service_pb2 import CompileRequest
from tests.service.h_graph import CPU, h_request

PAIRS = [(CompileRequest, CompileEnvelope), (ExplainMissRequest, ExplainMissEnvelope)]


@pytest.mark.parametrize(("public", "envelope"), PAIRS)
def test_an_envelope_has_the_fields_of_its_message(
    public: type[Message], envelope: type[Message]
) -> None:
    def fields(message: type[Message]) -> list[tuple[object, ...]]:
        return [
            (f.name, f.number, f.type, f.label, f.message_type and f.message_type.full_name)
            for f in message.DESCRIPTOR.fields
            if f.name != "graph"
        ]

    assert fields(public) == fields(envelope)
    numbers = {m.DESCRIPTOR.fields_by_name["graph"].number for m in (public, envelope)}
    assert len(numbers) == 1


def test_a_request_is_read_as_it_was_sent() -> None:
    request = h_request()
    request.request_id, request.model, request.wants_signed = "id", "llama@3", True
    request.options.deterministic = True
    read = CompileEnvelope.FromString(request.SerializeToString())
    graph = graph_of(read)
    assert graph is not None and graph_pb2.Graph.FromString(graph) == request.graph
    assert (read.request_id, read.model, read.wants_signed) == ("id", "llama@3", True)
    assert list(read.targets) == [CPU] and read.options == request.options


def test_a_graph_that_occurs_twice_is_merged_as_parsers_do() -> None:
    request = h_request()
    whole = request.SerializeToString() + CompileRequest(
        graph=graph_pb2.Graph(dialect="other", locations=["a.py:1"])
    ).SerializeToString(deterministic=True)
    graph = graph_of(CompileEnvelope.FromString(whole))
    assert graph is not None
    assert graph_pb2.Graph.FromString(graph) == CompileRequest.FromString(whole).graph


def test_no_graph_and_an_empty_graph_are_told_apart() -> None:
    assert graph_of(CompileEnvelope.FromString(b"")) is None
    empty = CompileRequest(graph=graph_pb2.Graph()).SerializeToString()
    assert graph_of(CompileEnvelope.FromString(empty)) == b""
