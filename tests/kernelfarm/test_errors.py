"""What a client sends is quoted in little of an error, and names are short where they are read."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from frontend_svc.flow.compile_flow import MAX_TARGETS, check_targets
from kernelfarm.errors import (
    MESSAGE_BYTES,
    CallerError,
    InternalError,
    InvalidGraphError,
    MalformedMessageError,
    bounded,
    error_facts,
    quoted,
)
from kernelfarm.service.tracebacks import clear_tracebacks
from kernelfarm.v1 import graph_pb2 as pb
from kernelfarm.v1 import manifest_pb2
from kernelfarm.wire.graph import graph_from_proto
from kernelfarm.wire.manifest import MAX_INPUTS, facts_from_proto
from kernelfarm.wire.names import MAX_LABEL_CHARS, MAX_NAME_CHARS, MAX_TEXT_CHARS
from kernelfarm.wire.status import status_details

TRAILERS_BYTES = 8192


def test_a_short_message_stays_as_it_is() -> None:
    for message in ("", "node 3 (aten.add)", "two\n\tlines", "größer", "x" * MESSAGE_BYTES):
        assert bounded(message) == message
        assert str(InvalidGraphError(message)) == message


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600", "\0", "\x1b", "\u202e", "\ud800", "%"])
@pytest.mark.parametrize("size", [600, 1_025, 9_000, 5_000_000])
def test_a_long_message_is_cut_in_its_middle_and_fits_into_trailers(letter: str, size: int) -> None:
    facts = error_facts(InvalidGraphError(f"begin {letter * size} end"))
    data = facts.message.encode()
    assert len(data) <= MESSAGE_BYTES
    assert facts.message.startswith("begin") and facts.message.endswith("end")
    assert facts.message.isprintable()
    percent_encoded = sum(1 if 0x20 <= b <= 0x7E and b != 0x25 else 3 for b in data)
    in_base64 = len(status_details(facts, "r" * 128)) * 4 // 3
    assert percent_encoded + in_base64 < TRAILERS_BYTES - 1024
    assert bounded(facts.message) == facts.message


def test_a_cut_message_tells_how_much_is_left_out() -> None:
    cut = bounded("a" * 3_000)
    head, _, tail = cut.partition(" ...[")
    left_out = int(tail.partition(" ")[0])
    assert left_out + cut.count("a") - " characters left out".count("a") == 3_000
    assert head == "a" * len(head)


def test_quotes_are_short_and_on_one_line() -> None:
    assert quoted("a\nb") == r"'a\nb'"
    assert len(quoted("x" * 10**7)) < 250 and "10000000 characters" in quoted("x" * 10**7)


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


def test_many_targets_are_refused_before_they_are_compared() -> None:
    """On 3c2bd51 the time grew with the square of their number."""
    with pytest.raises(CallerError, match=f"1000000 targets; expected at most {MAX_TARGETS}"):
        check_targets(tuple(map(str, range(1_000_000))))
    with pytest.raises(MalformedMessageError, match="a target of 1000 characters"):
        check_targets(("x" * 1000,))


class Held:
    """Something large that a frame names."""


def test_an_error_lets_go_of_frames_without_the_collector() -> None:
    def fail(held: Held) -> None:
        kept: list[BaseException] = []
        try:
            try:
                raise ValueError("inner")
            except ValueError as inner:
                kept.append(inner)
                raise InternalError("outer") from inner
        except InternalError as outer:
            kept.append(outer)
            raise ExceptionGroup("both", [outer, InternalError("other")]) from None

    held = Held()
    alive = weakref.ref(held)
    gc.disable()
    try:
        try:
            fail(held)
        except ExceptionGroup as group:
            clear_tracebacks(group)
        del held
        assert alive() is None
    finally:
        gc.enable()


async def test_an_error_that_several_share_is_forgotten_by_each() -> None:
    async def fail() -> None:
        raise InvalidGraphError("shared")

    task = asyncio.create_task(fail())
    results = await asyncio.gather(
        *(asyncio.shield(task) for _ in range(3)), return_exceptions=True
    )
    for error in results:
        assert isinstance(error, InvalidGraphError)
        clear_tracebacks(error)
        assert error.__traceback__ is None
