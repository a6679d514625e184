"""The graphs that AOT Autograd stores: those with gradients, or with wrappers of its own around.

AOT Autograd pickles its wrappers with an object for each of its functional graphs. For kernelfarm
this object holds the bytes of `PrecompiledGraph` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelfarm.client.capture.captured import UnsupportedGraphError
from kernelfarm.client.precompiled.content import PrecompiledGraph
from kernelfarm.client.precompiled.load import loaded_graph
from kernelfarm.client.programs.graph_runner import BoxedFunction
from kernelfarm.client.pytorch.private import OutputCode
from kernelfarm.client.pytorch.private.tracing import mark_boxed


class GraphCode(OutputCode):
    """A compiled functional graph: `run` in this process, `content` in a package.

    Without `content`, `reason` says why the graph cannot be stored.
    """

    def __init__(self, content: bytes | None, run: BoxedFunction, reason: str = "") -> None:
        self.content = content
        self._run: BoxedFunction | None = run
        self._reason = reason
        mark_boxed(self)
        # AOT Autograd stores only what has a key; the key has no other use.
        self._fx_graph_cache_key = "kernelfarm"

    def __call__(self, inputs: list[Any]) -> Any:  # type: ignore[override] # boxed, as Inductor's
        """Runs the graph; clears the list."""
        assert self._run is not None  # AOT Autograd calls `post_compile` first
        return self._run(inputs)

    def __getstate__(self) -> dict[str, Any]:
        return {"content": self.content, "reason": self._reason}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["content"], None, state["reason"])  # type: ignore[misc] # as in `copy`
        if self.content is not None:
            PrecompiledGraph.from_bytes(self.content)

    def prepare_for_serialization(self) -> None:
        """Raises if the graph cannot be stored.

        Raises:
            UnsupportedGraphError: it has something that its bytes cannot express.
        """
        if self.content is None:
            raise UnsupportedGraphError(f"kernelfarm cannot precompile a graph with {self._reason}")

    def post_compile(self, _: Sequence[Any], __: object, ___: object) -> None:
        """Finds the program of a graph that was read from a package."""
        if self._run is None and self.content is not None:
            self._run = loaded_graph(self.content)

    def set_triton_bundle(self, _: object) -> None:
        """Does nothing: the farm has the kernels."""
