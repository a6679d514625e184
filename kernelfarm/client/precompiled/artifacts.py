"""What PyTorch stores in its packages for this backend: objects whose state is plain bytes.

PyTorch pickles these objects with the rest of its package, and unpickles the package from the
user's own disk. They hold nothing but the bytes of `PrecompiledGraph`, which are checked when they
are unpickled: PyTorch then compiles again instead of failing later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelfarm.client.precompiled.content import PrecompiledGraph
from kernelfarm.client.precompiled.load import loaded
from kernelfarm.client.pytorch.private import (
    BackendCacheArtifact,
    PrecompileContext,
    SerializableCallable,
)


class SerializableGraph(SerializableCallable):
    """A compiled graph for `aot_compile`: a function, and the bytes to make it again."""

    def __init__(self, content: bytes, function: Callable[..., Any]) -> None:
        self.content = content
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


def record(name: str, content: bytes) -> None:
    """Adds a graph to the package that PyTorch is making."""
    PrecompileContext.record_artifact(GraphArtifact(name, content))
