"""What PyTorch stores in its packages for this backend: objects whose state is plain bytes.

PyTorch pickles these objects with the rest of its package, and unpickles the package from the
user's own disk. They hold nothing but the bytes of `PrecompiledGraph`, which are checked when they
are unpickled: PyTorch then compiles again instead of failing later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from kernelfarm.client.capture.input_order import called_in_order
from kernelfarm.client.precompiled.content import PrecompiledGraph
from kernelfarm.client.precompiled.load import loaded
from kernelfarm.client.pytorch.private import (
    BackendCacheArtifact,
    BundledAOTAutogradSerializableCallable,
    PrecompileContext,
    SerializableCallable,
)


class SerializableGraph(SerializableCallable):
    """A compiled graph for `aot_compile`: a function, and the bytes to make it again.

    `contents` are the bytes of its graphs, which is one.
    """

    def __init__(self, content: bytes, function: Callable[..., Any]) -> None:
        self.content = content
        self.contents = (content,)
        self._function = function

    @classmethod
    def serialize_compile_artifacts(cls, fn: SerializableGraph) -> bytes:
        """The bytes of a compiled graph."""
        return fn.content

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> SerializableGraph:
        """The compiled graph of these bytes; see `loaded`."""
        return cls(data, loaded(data))

    def __call__(self, *args: Any) -> Any:
        """Runs the graph."""
        return self._function(*args)


class GraphArtifact(BackendCacheArtifact[Callable[..., Any]]):
    """A compiled graph in a package of caching precompilation; `content` are its bytes."""

    content: bytes

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        PrecompiledGraph.from_bytes(self.content)

    def after_deserialization(self) -> Callable[..., Any]:
        """The compiled graph; see `loaded`."""
        return loaded(self.content)


class WrappedGraph(SerializableCallable):
    """A graph that AOT Autograd stores, with the order in which it takes its arguments.

    Its bytes are the order (JSON), a line feed, and what PyTorch makes of its own function.
    `contents` are the bytes of its graphs in the process that made it: the forward graph, then the
    backward graph.
    """

    def __init__(
        self,
        function: Any,
        positions: tuple[int, ...] | None,
        contents: tuple[bytes, ...] = (),
    ) -> None:
        self.contents = contents
        self.stored = BundledAOTAutogradSerializableCallable(function)
        self.positions = positions
        self._function = called_in_order(function, positions)

    @classmethod
    def serialize_compile_artifacts(cls, fn: WrappedGraph) -> bytes:
        """The bytes of a compiled graph."""
        stored = type(fn.stored).serialize_compile_artifacts(fn.stored)
        return json.dumps(fn.positions).encode() + b"\n" + stored

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> WrappedGraph:
        """The compiled graph of these bytes."""
        order, _, stored = data.partition(b"\n")
        positions = json.loads(order)
        found = BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts(stored)
        return cls(found.compiled_fn, None if positions is None else tuple(positions))

    def __call__(self, *args: Any) -> Any:
        """Runs the graph."""
        return self._function(*args)


class WrappedArtifact(BackendCacheArtifact[Callable[..., Any]]):
    """A graph that AOT Autograd stores, in a package of caching precompilation.

    `content` are the positions of `WrappedGraph` and PyTorch's own artifact.
    """

    content: tuple[tuple[int, ...] | None, Any]

    def after_deserialization(self) -> Callable[..., Any]:
        """The compiled graph."""
        positions, stored = self.content
        return called_in_order(stored.after_deserialization(), positions)


def record(name: str, content: bytes) -> None:
    """Adds a graph to the package that PyTorch is making."""
    PrecompileContext.record_artifact(GraphArtifact(name, content))


def record_order(name: str, positions: tuple[int, ...] | None) -> bool:
    """Adds the order of arguments to a graph that AOT Autograd has added; False if it has not."""
    stored = PrecompileContext.serialize_artifact_by_key(name)
    if stored is not None and positions is not None:
        PrecompileContext.record_artifact(WrappedArtifact(name, (positions, stored)))
    return stored is not None
