"""Envelopes equal the public messages byte for byte; only their graphs stay bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.message import DecodeError, Message

from frontend_svc.api.envelopes import EnvelopeParser, graph_of
from kernelfarm.internal.v1.envelopes_pb2 import CompileEnvelope, ExplainMissEnvelope
from kernelfarm.v1 import graph_pb2
from kernelfarm.v1.cache_service_pb2 import ExplainMissRequest
from kernelfarm.v1.compile_service_pb2 import CompileRequest
from tests.support.small_graphs import CPU, h_request

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


def test_no_graph_and_an_empty_graph_differ() -> None:
    assert graph_of(CompileEnvelope.FromString(b"")) is None
    empty = CompileRequest(graph=graph_pb2.Graph()).SerializeToString()
    assert graph_of(CompileEnvelope.FromString(empty)) == b""


COMPILE_PARSER = EnvelopeParser(CompileEnvelope, CompileRequest)


def large_request() -> CompileRequest:
    request = h_request()
    request.request_id, request.model = "id", "llama@3"
    request.graph.locations.extend(f"file.py:{line}" for line in range(10_000))
    return request


def test_a_large_graph_is_a_view_of_the_request() -> None:
    request = large_request()
    data = request.SerializeToString()
    read = COMPILE_PARSER(data)
    assert isinstance(read.graph, memoryview) and read.graph.obj is data
    assert read.graph == request.graph.SerializeToString()
    assert (read.request_id, read.fields.model, list(read.fields.graph)) == ("id", "llama@3", [])
    assert list(read.fields.targets) == [CPU]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data + CompileRequest(graph=h_request().graph).SerializeToString(),
        lambda data: data + b"\x1a\x01x" * 1_000,  # more fields than are scanned
        lambda data: (
            data + b"\x1a\x81\x80\x04" + b"x" * 65_537
        ),  # other fields than the graph are large
        lambda data: data + b"\x9b\x06\x9c\x06",  # an unknown group
        lambda data: data + b"\x99\x06" + bytes(8) + b"\x9d\x06" + bytes(4) + b"\x98\x06\xac\x02",
    ],
    ids=["two graphs", "many targets", "a large target", "a group", "unknown numbers"],
)
def test_a_large_request_is_read_as_a_parser_reads_it(change: Callable[[bytes], bytes]) -> None:
    data = change(large_request().SerializeToString())
    read, expected = COMPILE_PARSER(data), CompileEnvelope.FromString(data)
    assert read.graph == graph_of(expected)
    del read.fields.graph[:], expected.graph[:]
    assert read.fields == expected


@pytest.mark.parametrize(
    "end",
    [b"\x12", b"\x12\x05abc", b"\xff" * 11, b"\x07", b"\x18", b"\x08"],
    ids=["no length", "too short", "an endless number", "a bad type", "an enum's tag", "a tag"],
)
def test_a_large_request_that_is_cut_is_refused_as_by_a_parser(end: bytes) -> None:
    data = large_request().SerializeToString() + end
    with pytest.raises(DecodeError):
        CompileEnvelope.FromString(data)
    with pytest.raises(DecodeError):
        COMPILE_PARSER(data)
