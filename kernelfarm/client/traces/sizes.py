"""Symbolic sizes of a Dynamo graph as text in which names have no part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


class NotCoveredError(Exception):
    """A graph that is traced at every start; the text, a few words, says why."""


class SizeTexts:
    """Names symbols by their first use; then tells what is known of them."""

    def __init__(self) -> None:
        self._names: dict[Any, Any] = {}
        self._env: ShapeEnv | None = None

    def text(self, size: int | torch.SymInt) -> str:
        """A size.

        Raises:
            NotCoveredError: it depends on data, or its symbols have no order.
        """
        if not isinstance(size, torch.SymInt):
            return str(int(size))
        self._env = size.node.shape_env
        return self._renamed(size.node.expr, may_name=True)

    def known_facts(self) -> list[str]:
        """Ranges of the symbols, and the guards so far that speak of them.

        Raises:
            NotCoveredError: a guard ties them to symbols of something else.
        """
        env = self._env
        if env is None:
            return []
        if env.deferred_runtime_asserts:
            raise NotCoveredError("checks of sizes at run time")
        ranges = [f"{name} in {env.var_to_range[old]}" for old, name in self._names.items()]
        guards = sorted(
            self._renamed(guard.expr, may_name=False)
            for guard in env.guards
            if guard.expr.free_symbols & self._names.keys()
        )
        return [*ranges, *guards]

    def env_state(self) -> object:
        """What a trace changes where it learns of sizes; equal before and after if it did not."""
        env = self._env
        if env is None:
            return None
        return len(env.guards), dict(env.replacements), dict(env.var_to_range)

    def _renamed(self, expr: Any, *, may_name: bool) -> str:
        new = [old for old in expr.free_symbols if old not in self._names]
        if len(new) > may_name:
            raise NotCoveredError("sizes whose symbols have no order")
        for old in new:
            if str(old).startswith(("u", "zuf", "zf")):
                raise NotCoveredError("sizes that depend on data")
            self._names[old] = type(old)(f"k{len(self._names)}", integer=True)
        return str(expr.xreplace(self._names))
