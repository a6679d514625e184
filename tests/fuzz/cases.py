"""Inputs by number: seed, type and number determine the bytes."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from random import Random
from typing import Any

from google.protobuf.message import DecodeError, Message

from kernelfarm.v1.graph_pb2 import Graph
from tests.fuzz.corpus import parsed, seeds
from tests.fuzz.messages import message_class
from tests.fuzz.mutate_bytes import mutate_bytes
from tests.fuzz.mutate_graph import change_graph
from tests.fuzz.mutate_message import PartPool, mutate

KEPT_TYPES = (
    "kernelfarm.v1.Graph",
    "kernelfarm.internal.v1.Kernel",
    "kernelfarm.v1.Plan",
    "kernelfarm.v1.Artifact",
)
"""Types with valid messages in the corpus; requests are composed of them."""

MAX_MESSAGE_BYTES = 1_500_000
_BYTES_SHARE = 0.12
_VALID_SHARE = 0.03
_POOLED = 250


def case_bytes(seed: int, number: int, base: bytes, full_name: str) -> bytes:
    """A mutation of a valid message of its type."""
    random = Random(f"{seed}:{full_name}:{number}")
    draw = random.random()
    if draw < _VALID_SHARE:
        return base
    if draw < _VALID_SHARE + _BYTES_SHARE:
        others = seeds(random.choice(KEPT_TYPES))
        return mutate_bytes(base, random.choice(others) if others else b"", random)
    message = message_class(full_name).FromString(base)
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5, 12))):
        # Nested deeper than protobuf can copy, or removed by an earlier change: it stays unchanged.
        with suppress(DecodeError, IndexError, ValueError):
            _mutated(message, random)
        if message.ByteSize() > MAX_MESSAGE_BYTES:
            break
    return message.SerializeToString()


@lru_cache(maxsize=1)
def part_pool() -> PartPool:
    """Submessages of the corpus for crossovers."""
    random = Random(1)
    chosen: list[Message] = []
    for full_name in KEPT_TYPES:
        messages = parsed(full_name)
        chosen += random.sample(messages, min(_POOLED, len(messages)))
    return PartPool(chosen)


def _mutated(message: Any, random: Random) -> None:
    """Changes the graph that the message is or contains, or any other field."""
    field = message.DESCRIPTOR.fields_by_name.get("graph")
    if isinstance(message, Graph):
        _mutated_graph(message, random)
    elif field is None or random.random() < 0.2:
        mutate(message, part_pool(), random)
    elif field.message_type is not None:
        _mutated_graph(message.graph, random)
    else:  # a serialized graph
        graph = Graph.FromString(message.graph)
        _mutated_graph(graph, random)
        message.graph = graph.SerializeToString()


def _mutated_graph(graph: Graph, random: Random) -> None:
    if random.random() < 0.7:
        change_graph(graph, random)
    else:
        mutate(graph, part_pool(), random)
