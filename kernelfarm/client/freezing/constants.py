"""What a frozen graph computes once from its parameters, computed again when these have changed."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelfarm.client import counters
from kernelfarm.client.freezing.frozen_graph import FrozenGraph
from kernelfarm.client.pytorch.huge_pages import move_to_huge_pages
from kernelfarm.client.pytorch.private import _DisableAutocast
from kernelfarm.client.pytorch.private.tracing import mark_boxed

BoxedFunction = Callable[[list[Any]], Sequence[Any]]

MOST_SETS = 64
"""Sets of parameters of one graph whose constants are kept: equal layers share its code."""


class FrozenWarning(UserWarning):
    """A model is not frozen, or its frozen parameters change."""


@dataclass(frozen=True, slots=True)
class _Folded:
    """Constants, and the parameters that they were computed from.

    `counted` are the parameters with a version counter; tensors that were made in inference mode
    have none.
    """

    parameters: list[torch.Tensor]
    addresses: list[int]
    counted: list[torch.Tensor]
    versions: list[int]
    constants: list[torch.Tensor]

    def is_current(self, parameters: Sequence[torch.Tensor]) -> bool:
        """True if the same tensors are passed, and no one has changed them since."""
        for own, given in zip(self.parameters, parameters, strict=True):
            if own is not given:
                return False
        return [tensor._version for tensor in self.counted] == self.versions and [
            tensor.data_ptr() for tensor in parameters
        ] == self.addresses


class FrozenConstants:
    """The constants of one frozen graph for the parameters of a call.

    Layers of equal structure share one compiled graph and call it with parameters of their own, so
    constants are kept by the first parameter. A parameter that was replaced or changed in place is
    noticed by its identity, its address or its version counter; then its constants are computed
    again. `parameter.data.mul_(2)` is not noticed: it changes none of these.
    """

    def __init__(self, frozen: FrozenGraph) -> None:
        self._frozen = frozen
        self._positions = frozen.parameters
        self._known: OrderedDict[int, _Folded] = OrderedDict()
        self._lock = threading.Lock()
        self._has_warned = False

    def passed_to(self, program: BoxedFunction) -> BoxedFunction:
        """A function that passes the constants to a program, behind its other arguments."""

        def run(args: list[Any]) -> Sequence[Any]:
            args += self.of(args)
            return program(args)

        mark_boxed(run)
        return run

    def of(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """The constants for a call with these arguments."""
        parameters = [args[position] for position in self._positions]
        first = id(parameters[0])
        known = self._known.get(first)
        if known is not None and known.is_current(parameters):
            return known.constants
        with self._lock:
            known = self._known.get(first)
            if known is None or not known.is_current(parameters):
                if known is not None:
                    self._warn()
                known = self._known[first] = self._folded(parameters)
                kept = (args[position] for position in self._frozen.kept)
                move_to_huge_pages([*known.constants, *kept])
                if len(self._known) > MOST_SETS:
                    self._known.popitem(last=False)
            return known.constants

    def _folded(self, parameters: list[torch.Tensor]) -> _Folded:
        counters.count("frozen.folded")
        counted = [tensor for tensor in parameters if not tensor.is_inference()]
        # The versions are read first: a change meanwhile is then noticed at the next call.
        versions = [tensor._version for tensor in counted]
        addresses = [tensor.data_ptr() for tensor in parameters]
        with torch.inference_mode(mode=False), torch.no_grad(), _DisableAutocast():
            constants = list(self._frozen.fold(*parameters))
        return _Folded(parameters, addresses, counted, versions, constants)

    def _warn(self) -> None:
        counters.count("frozen.refolded")
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            "kernelfarm: frozen parameters have changed; what was computed from them is computed"
            " again, which takes time. Compile a model without `freezing` while its parameters"
            " change",
            FrozenWarning,
            stacklevel=2,
        )


def warn_not_frozen(reason: str) -> None:
    """Warns that a graph is compiled as if it were not to be frozen."""
    counters.count(f"frozen.not.{reason}")
    warnings.warn(
        f"kernelfarm: a graph is not frozen, because of this: {reason}", FrozenWarning, stacklevel=2
    )
