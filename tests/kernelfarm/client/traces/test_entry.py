"""Bytes that are not a trace are refused as such: no other error, and nothing is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfarm.client.disk.files import sealed, unsealed
from kernelfarm.client.traces.entry import TraceEntry, from_bytes, to_bytes
from kernelfarm.errors import KernelfarmError
from tests.support.farm import Farm
from tests.support.like_eager import compiled, numbers

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def stored(farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A trace as a process keeps it: sizes that vary, a written input, views, a constant."""
    folder = tmp_path_factory.mktemp("disk")

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.add_(1)
        return (x @ y).softmax(-1) + torch.tensor([0.5]), x.t(), torch.ones(3, 4)

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KERNELFARM_ENDPOINT", farm.endpoint)
        environment.setenv("KERNELFARM_DISK_CACHE_DIR", str(folder))
        torch._dynamo.reset()
        compiled(function, dynamic=True)(numbers(3, 4), numbers(4, 7))
    (path,) = Path(folder).glob("traces/*/*")
    return path.read_bytes()


def decoded(content: bytes) -> TraceEntry | None:
    """The entry; None if the bytes are refused."""
    try:
        entry = from_bytes(content)
        entry.captured(torch.device("cpu"))
    except KernelfarmError:
        return None
    return entry


def parts(stored: bytes) -> tuple[dict[str, Any], bytes]:
    body = unsealed(stored)
    length = int.from_bytes(body[:8], "little")
    return json.loads(body[8 : 8 + length]), body[8 + length :]


def joined(header: Any, graph: bytes) -> bytes:
    text = json.dumps(header).encode()
    return sealed(len(text).to_bytes(8, "little") + text + graph)


def test_a_trace_comes_back_as_it_was(stored: bytes) -> None:
    entry = decoded(stored)
    assert entry is not None and to_bytes(entry) == stored
    assert joined(*parts(stored)) == stored


@settings(deadline=None)
@given(data=st.data())
def test_damaged_bytes_under_a_new_seal_are_no_accident(stored: bytes, data: st.DataObject) -> None:
    body = bytearray(unsealed(stored))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    decoded(sealed(bytes(body[: data.draw(st.integers(0, len(body)))])))
    decoded(sealed(bytes(body)))


@settings(deadline=None)
@given(data=st.data())
def test_a_header_with_anything_in_a_field_is_no_accident(
    stored: bytes, data: st.DataObject
) -> None:
    header, graph = parts(stored)
    header[data.draw(st.sampled_from(sorted(header)))] = data.draw(_JSON)
    decoded(joined(header, graph))


@given(header=_JSON)
def test_any_header_is_no_accident(stored: bytes, header: Any) -> None:
    decoded(joined(header, parts(stored)[1]))


@pytest.mark.parametrize("depth", [50, 100_000])
def test_a_header_that_is_deep_is_refused(stored: bytes, depth: int) -> None:
    text = b"[" * depth + b"]" * depth
    graph = parts(stored)[1]
    assert decoded(sealed(len(text).to_bytes(8, "little") + text + graph)) is None
