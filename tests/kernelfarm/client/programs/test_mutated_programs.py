"""Programs, manifests and files that were changed: refused as such, in bounded time and memory.

Programs are signed, so this is the second net: what a farm with a fault of its own would sign.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf.message import Message

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.disk.tier import read_entry
from kernelfarm.client.farm.checked_program import CheckManifest, ExpectedProgram, checked_content
from kernelfarm.client.farm.compiled_program import decode_program
from kernelfarm.client.farm.invalidation_state import InvalidationState
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.errors import KernelfarmError
from kernelfarm.signing import Manifest
from kernelfarm.signing.key_files import keyring_from_text
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.v1 import compile_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_bytes, manifest_to_bytes
from tests.support.client_process import new_process
from tests.support.farm import Farm
from tests.support.traced_graphs import traced_one

COUNT = 150
LONGEST_S = 10.0
"""A busy machine takes 0.3 s for the slowest; what is exponential takes for ever."""

NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, -(2**63))
TEXTS = (
    "", "x", "s0", "(" * 3000, str(2**70), "a" * 50_000, "s0*" * 500 + "1", "\0", "s0 div 0", "-1"
)  # fmt: skip


class Unlaunched:
    """A kernel that is bound and never run."""

    def bind(self, sizes: tuple[int, ...]) -> Callable[[int, int], Callable[[], int]]:
        return lambda buffers, context: lambda: 0


@pytest.fixture(scope="module")
def kept(
    farm: Farm, tmp_path_factory: pytest.TempPathFactory
) -> tuple[CapturedGraph, Manifest, bytes]:
    """A program of kernels, contractions and views with its manifest, as the disk keeps them."""
    folder = tmp_path_factory.mktemp("disk")

    def work(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x @ w).softmax(-1)
        return torch.cat([y, y.sin()], 1).sort(-1)[0] + torch.rand_like(x).mean() * 0.815, x.t()

    graph = traced_one(work, torch.randn(5, 7), torch.randn(7, 6))
    process = new_process(farm.endpoint, folder)
    process.program(graph)
    (entry,) = (read_entry(path) for path in Path(folder).glob("programs/*/*/*/*.json"))
    assert process.access.disk is not None
    sha256 = entry.manifest.content.sha256
    contents = process.access.disk.contents(entry, [sha256])
    assert contents is not None
    return graph, entry.manifest, contents[sha256]


def fields(message: Message) -> Iterator[tuple[Message, Any]]:
    """Every field that is set, of a message and those within it."""
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None:
            for inner in [value] if isinstance(value, Message) else value:
                yield from fields(inner)
        yield message, field


def mutated(content: bytes, draw: random.Random) -> bytes:
    """The program with one to five fields changed; sometimes with bits flipped, too."""
    message = pb.ProgramResult.FromString(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        owner, field = draw.choice(list(fields(message)))
        value = getattr(owner, field.name)
        if isinstance(value, Message):
            owner.ClearField(field.name)
        elif isinstance(value, str | bytes | bool | int | float):
            setattr(owner, field.name, _other(value, field, draw))
        elif draw.random() < 0.5:
            del value[draw.randrange(len(value))]
        else:
            value.MergeFrom(list(value))
    changed = bytearray(message.SerializeToString())
    if draw.random() < 0.3:
        for _ in range(draw.choice((1, 3, 10))):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _other(value: object, field: Any, draw: random.Random) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return draw.choice(TEXTS)
    if isinstance(value, bytes):
        return draw.randbytes(draw.choice((0, 5, 32, 33)))
    if isinstance(value, float):
        return draw.choice((float("nan"), 1e308, -1.0))
    is_short = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32, field.CPPTYPE_ENUM)
    is_positive = field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
    limit = 2**31 if is_short else 2**63
    return draw.choice([n for n in NUMBERS if (0 if is_positive else -limit) <= n < limit])


def accept(_: Manifest, __: object) -> None:
    """The second net alone: the first, the signature, would refuse all of these."""


def test_a_changed_program_is_bound_or_refused_and_nothing_else(
    kept: tuple[CapturedGraph, Manifest, bytes],
) -> None:
    graph, manifest, content = kept
    check: CheckManifest = accept
    reference = ExpectedProgram((manifest.namespace,), manifest.key, "")
    loader = device_support(torch.device("cpu")).loader
    outcomes = {"bound": 0, "refused": 0}
    for number in range(COUNT):
        changed = mutated(content, random.Random(number))
        began = time.monotonic()
        try:
            message = checked_content(_of(manifest, changed), changed, reference, check)
            found = decode_program(message, manifest, changed)
            kernels = tuple((LoadedVariant((), Unlaunched()),) for _ in found.kernels)
            PlanRunner(BoundProgram(found.plan, kernels, graph, loader))
            outcomes["bound"] += 1
        except KernelfarmError:
            outcomes["refused"] += 1
        assert time.monotonic() - began < LONGEST_S, number
    assert min(outcomes.values()) > COUNT // 20, outcomes


def _of(manifest: Manifest, content: bytes) -> Manifest:
    """The manifest, had it been made for this content."""
    return replace(manifest, content=blob_ref(content))


def test_changed_bytes_of_small_files_are_read_or_refused_and_nothing_else(
    kept: tuple[CapturedGraph, Manifest, bytes],
) -> None:
    epochs = InvalidationState("a" * 32, 1, 7, 1e9, 5, {"op:x": 6}, ("b" * 32,)).to_json().encode()
    readers: dict[Callable[[bytes], object], bytes] = {
        manifest_from_bytes: manifest_to_bytes(kept[1]),
        lambda stored: InvalidationState.from_json(stored.decode("utf-8", "replace")): epochs,
        lambda stored: keyring_from_text(stored.decode("utf-8", "replace"), Path("keys")): b"[]",
    }
    for read, content in readers.items():
        for number in range(20 * COUNT):
            draw = random.Random(number)
            changed = bytearray(content)
            for _ in range(draw.choice((1, 1, 3))):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            try:
                read(bytes(changed))
            except KernelfarmError:
                continue
