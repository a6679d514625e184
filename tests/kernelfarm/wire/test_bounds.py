"""Names and facts that clients send are bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelfarm.errors import MalformedMessageError
from kernelfarm.v1 import graph_pb2 as pb
from kernelfarm.v1 import manifest_pb2
from kernelfarm.wire.graph import graph_from_proto
from kernelfarm.wire.manifest import MAX_INPUTS, facts_from_proto
from kernelfarm.wire.names import MAX_LABEL_CHARS, MAX_NAME_CHARS, MAX_TEXT_CHARS


def node(**fields: object) -> pb.Graph:
    return pb.Graph(nodes=[pb.Node(**{"op": "aten.x", **fields})])


def text(value: str) -> pb.Argument:
    return pb.Argument(text=value)


LONG = {
    "operator": lambda n: node(op=n),
    "attribute": lambda n: node(attrs=[pb.Attribute(name=n, value=text("x"))]),
    "text": lambda n: node(args=[text(n)]),
    "nested text": lambda n: node(args=[pb.Argument(list=pb.ArgumentList(items=[text(n)]))]),
    "symbol": lambda n: pb.Graph(symbols=[pb.Symbol(name=n)]),
    "input": lambda n: pb.Graph(inputs=[pb.Input(name=n, symbol="s")]),
    "input's symbol": lambda n: pb.Graph(inputs=[pb.Input(symbol=n)]),
    "symbol in an extent": lambda n: node(
        types=[pb.TensorType(dtype=pb.DTYPE_F32, shape=[pb.Expr(symbol=n)])]
    ),
    "dialect": lambda n: pb.Graph(dialect=n),
    "location": lambda n: pb.Graph(locations=[n]),
    "origin": lambda n: pb.Graph(origin_ops=[n]),
}


@pytest.mark.parametrize("make", LONG.values(), ids=LONG)
def test_a_long_name_is_refused_where_it_is_read(make: Callable[[str], pb.Graph]) -> None:
    message = make("y" * (max(MAX_NAME_CHARS, MAX_LABEL_CHARS, MAX_TEXT_CHARS) + 1))
    message.abi_version = 1
    with pytest.raises(MalformedMessageError, match="4097 characters") as caught:
        graph_from_proto(message)
    assert len(str(caught.value)) < 500


def test_facts_of_callers_are_bounded() -> None:
    for facts in (
        manifest_pb2.CallerFacts(environment={str(n): "" for n in range(1000)}),
        manifest_pb2.CallerFacts(environment={"a": "x" * 5_000}),
        manifest_pb2.CallerFacts(environment={"a" * 300: "x"}),
        manifest_pb2.CallerFacts(symbols={"s" * 300: 1}),
        manifest_pb2.CallerFacts(inputs=[manifest_pb2.InputFacts()] * (MAX_INPUTS + 1)),
    ):
        with pytest.raises(MalformedMessageError, match="a caller's facts"):
            facts_from_proto(facts)
