"""The bytes that kernelfarm adds to a precompiled package, for one graph.

SHA-256 of the rest, length of the header, header (JSON), trace (`traces.entry`)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch

from kernelfarm.client.disk.files import sealed, unsealed
from kernelfarm.client.traces.torch_state import CAPTURE_VERSION
from kernelfarm.errors import MalformedMessageError, UnsupportedVersionError
from kernelfarm.ir.graph_ir import ABI_VERSION
from kernelfarm.ir.product_choice import ProductChoice

_LENGTH_BYTES = 8
_DEVICES = ("cpu", "cuda")
_STATED: Mapping[str, tuple[type, ...]] = {
    "endpoint": (str,),
    "timeout_s": (int, float),
    "model": (str,),
    "mode": (str,),
    "cuda_graphs": (bool,),
}
"""The settings that `torch.compile` may be called with, and their types."""


def version() -> str:
    """The versions that a graph must have been made with: capture, and PyTorch."""
    return f"capture {CAPTURE_VERSION} of {ABI_VERSION}, torch {torch.__version__}"


@dataclass(frozen=True, slots=True)
class PrecompiledGraph:
    """A graph's trace, and how it was compiled.

    `trace` are the bytes of `traces.entry`. `device` is a type of device. `positions` are those of
    `InputOrder`. `static` are the positions of arguments that keep their memory, for CUDA graphs;
    None for the graphs of a training step, which are not recorded. `stated` are the settings that
    `torch.compile` was called with; all others are those of the process that loads the graph.
    `products` is the text of a `ProductChoice`.
    """

    trace: bytes
    device: str
    positions: tuple[int, ...] | None = None
    static: tuple[int, ...] | None = None
    stated: Mapping[str, str | float] = field(default_factory=dict)
    is_deterministic: bool = False
    fallback_random: bool = False
    products: str = ProductChoice.AUTO.value
    leaves_autocast: bool = False
    version: str = field(default_factory=version)

    def to_bytes(self) -> bytes:
        """The graph as bytes."""
        stored = asdict(self)
        del stored["trace"]
        header = json.dumps(stored).encode()
        return sealed(len(header).to_bytes(_LENGTH_BYTES, "little") + header + self.trace)

    @staticmethod
    def from_bytes(content: bytes) -> PrecompiledGraph:
        """The graph of `to_bytes`; its trace is not checked yet.

        Raises:
            MalformedMessageError: the bytes are not such a graph.
            UnsupportedVersionError: another version of kernelfarm or PyTorch made them.
        """
        try:
            rest = unsealed(content)
            length = int.from_bytes(rest[:_LENGTH_BYTES], "little")
            body = rest[_LENGTH_BYTES:]
            header = _checked(json.loads(body[:length]))
        except (ValueError, RecursionError) as error:
            raise MalformedMessageError(
                f"{len(content)} bytes of a precompiled package are no graph of kernelfarm: {error}"
            ) from error
        if header["version"] != version():
            raise UnsupportedVersionError(
                f"the package has a graph of {header['version']}; expected {version()}: compile it"
                " again with the versions of this process"
            )
        for name in ("positions", "static"):
            header[name] = None if header[name] is None else tuple(header[name])
        return PrecompiledGraph(body[length:], **header)


def _checked(header: Any) -> dict[str, Any]:
    """The header, if it has the fields of a graph with values of their types.

    Raises:
        ValueError: it has not.
    """
    names = {field.name for field in fields(PrecompiledGraph)} - {"trace"}
    if not isinstance(header, dict) or header.keys() != names:
        raise ValueError("a header with other fields")
    positions, stated = header["positions"], header["stated"]
    flags = ("is_deterministic", "fallback_random", "leaves_autocast")
    is_valid = (
        (positions is None or _is_order(positions))
        and (header["static"] is None or _are_positions(header["static"]))
        and header["device"] in _DEVICES
        and isinstance(stated, dict)
        and all(isinstance(value, _STATED.get(name, ())) for name, value in stated.items())
        and all(isinstance(header[flag], bool) for flag in flags)
        and header["products"] in [choice.value for choice in ProductChoice]
        and isinstance(header["version"], str)
    )
    if not is_valid:
        raise ValueError("a header with values of other types")
    return header


def _are_positions(found: Any) -> bool:
    """True for a list of positions of arguments."""
    return isinstance(found, list) and all(type(at) is int and at >= 0 for at in found)


def _is_order(positions: Any) -> bool:
    """True for an order of at least two arguments."""
    return (
        isinstance(positions, list)
        and len(positions) > 1
        and all(type(position) is int for position in positions)
        and sorted(positions) == list(range(len(positions)))
    )
