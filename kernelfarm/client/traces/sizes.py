"""The symbolic sizes of a Dynamo graph as text that does not depend on names of symbols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernelfarm.client.capture.sizes import depends_on_data

if TYPE_CHECKING:
    from kernelfarm.client.pytorch.private import ShapeEnv


class NotCoveredError(Exception):
    """The trace cache does not cover a graph; the text is the reason in the counter's name."""


class SizeTexts:
    """Renames symbols by their first use, and describes the facts about them."""

    def __init__(self) -> None:
        self._names: dict[Any, Any] = {}
        self._env: ShapeEnv | None = None

    def text(self, size: int | torch.SymInt) -> str:
        """The text of a size.

        Raises:
            NotCoveredError: it depends on data, or has several new symbols, whose order is not
                defined.
        """
        if not isinstance(size, torch.SymInt):
            return str(int(size))
        self._env = size.node.shape_env
        return self._renamed(size.node.expr, may_name=True)

    def known_facts(self) -> list[str]:
        """The ranges of the symbols, and the current guards on them.

        Raises:
            NotCoveredError: a guard also has a symbol that the graph's inputs do not have.
        """
        env = self._env
        if env is None:
            return []
        if env.deferred_runtime_asserts:
            raise NotCoveredError("run-time checks of sizes")
        ranges = [f"{name} in {env.var_to_range[old]}" for old, name in self._names.items()]
        guards = sorted(
            self._renamed(guard.expr, may_name=False)
            for guard in env.guards
            if guard.expr.free_symbols & self._names.keys()
        )
        return [*ranges, *guards]

    def env_state(self) -> object:
        """The state of the symbols; tracing changes it if it adds guards or facts about sizes."""
        env = self._env
        if env is None:
            return None
        return len(env.guards), dict(env.replacements), dict(env.var_to_range)

    def _renamed(self, expr: Any, *, may_name: bool) -> str:
        new = [old for old in expr.free_symbols if old not in self._names]
        if len(new) > may_name:
            raise NotCoveredError("sizes with symbols in no defined order")
        for old in new:
            if depends_on_data(old):
                raise NotCoveredError("sizes that depend on data")
            self._names[old] = type(old)(f"k{len(self._names)}", integer=True)
        return str(expr.xreplace(self._names))
