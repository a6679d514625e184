"""Content addresses of programs and kernels.

A key is the SHA-256 over an own canonical text, never over serialized protobuf, which is not
canonical. Everything that selects the result is in it: the canonical graph or kernel, the target
and the options. Names, locations, hints and comments are not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.any_kernel import AnyKernel
from kernelfarm.ir.canonical import canonical_graph, canonical_kernel
from kernelfarm.ir.encode import encode_graph, encode_kernel, encode_text_pairs
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.ir.work_budget import phase

__all__ = [
    "DIGEST_BYTES",
    "ProgramIdentity",
    "canonical_graph",
    "canonical_kernel",
    "kernel_digest",
    "kernel_key",
    "named_user_kernel",
    "program_identity",
    "program_key",
    "program_keys",
    "trace_digest",
    "tuning_digest",
]

DIGEST_BYTES = 32
"""The size of every digest and key: SHA-256."""

MAX_PART_CHARS = 200
"""A longer part of a trace's digest goes into it as a digest of its own."""

_MAX_PARTS = 32
_NAME_CHARS, _NAME_DIGITS = 40, 8
_PART_NAME = re.compile(r"[a-z_]{1,32}")
_PART_VALUE = re.compile(rf"[ -~]{{0,{MAX_PART_CHARS}}}")


@dataclass(frozen=True, slots=True)
class ProgramIdentity:
    """Everything that selects the programs of a graph, except the target.

    `shared_parts` are the parts of the program keys that all targets share, by name. `graph` is a
    digest of the whole canonical graph, `operators` a digest of its operators alone: graphs share
    it that differ in sizes, element types or attributes only.
    """

    shared_parts: Mapping[str, str]
    _texts: tuple[str, str] = field(repr=False)

    def key(self, target: str) -> bytes:
        """Key of the program for a target: 32 bytes."""
        return _digest(("program", target, *self._texts))

    def parts(self, target: str) -> dict[str, str]:
        """What the key for a target is made of, by name, so that two keys can be compared."""
        return {**self.shared_parts, "target": target}


def program_identity(graph: Graph, options: tuple[tuple[str, str], ...]) -> ProgramIdentity:
    """What selects the programs of a captured graph; the graph is put in canonical form once."""
    with phase("digest"):
        graph_text = encode_graph(canonical_graph(graph))
        operators = "\n".join((graph.dialect, *(node.op for node in graph.nodes)))
        parts = {
            "graph": _digest(("graph", graph_text)).hex(),
            "operators": _digest(("operators", operators)).hex(),
            "options": ", ".join(f"{name}={value}" for name, value in sorted(options)),
            "abi": str(graph.abi_version),
        }
        return ProgramIdentity(parts, (encode_text_pairs(options), graph_text))


def program_key(graph: Graph, target: str, options: tuple[tuple[str, str], ...]) -> bytes:
    """Key of a program: 32 bytes over the captured graph, the target and the options."""
    return program_keys(graph, (target,), options)[target]


def program_keys(
    graph: Graph, targets: Iterable[str], options: tuple[tuple[str, str], ...]
) -> dict[str, bytes]:
    """Program keys of one graph by target; the graph is put in canonical form once."""
    identity = program_identity(graph, options)
    return {target: identity.key(target) for target in targets}


def kernel_key(kernel: AnyKernel, target: str) -> bytes:
    """Key of a kernel: 32 bytes over the kernel and the target; its name has no part in it."""
    if isinstance(kernel, UserKernel):
        return _digest(("user kernel", target, _encoded(kernel)))
    return _digest(("kernel", target, encode_kernel(canonical_kernel(kernel))))


def kernel_digest(kernel: AnyKernel) -> bytes:
    """Digest of a kernel's content alone: 32 bytes, from which its name is made."""
    if isinstance(kernel, UserKernel):
        return _digest(("user content", _encoded(kernel)))
    return _digest(("content", encode_kernel(canonical_kernel(kernel))))


def named_user_kernel(kernel: UserKernel) -> UserKernel:
    """A user's kernel with a name made of its function's and digits of its digest."""
    digits = kernel_digest(kernel).hex()[:_NAME_DIGITS]
    return replace(kernel, name=f"{kernel.entry[:_NAME_CHARS]}_{digits}")


def _encoded(kernel: UserKernel) -> str:
    # Few programs have such kernels, and clients should start quickly.
    from kernelfarm.ir.triton.encode import encode_user_kernel  # noqa: PLC0415

    return encode_user_kernel(kernel)


def trace_digest(parts: Mapping[str, str]) -> bytes:
    """Digest of a tracer's graph and all that its trace depends on: 32 bytes over named parts.

    Raises:
        MalformedMessageError: too many parts, or one that is not short plain text.
    """
    if len(parts) > _MAX_PARTS:
        raise MalformedMessageError(f"{len(parts)} parts; expected at most {_MAX_PARTS}")
    for name, value in parts.items():
        if not _PART_NAME.fullmatch(name) or not _PART_VALUE.fullmatch(value):
            raise MalformedMessageError(
                f"part {name[:40]!r} of {len(value)} characters; expected a name of a-z and _, and"
                f" at most {MAX_PART_CHARS} printable ones"
            )
    return _digest(("trace", *(text for part in sorted(parts.items()) for text in part)))


def tuning_digest(kernels: Sequence[bytes], values: Sequence[int]) -> bytes:
    """Digest of what is measured: the digests of all candidates, and the sizes that matter."""
    texts = (str(len(kernels)), *(kernel.hex() for kernel in kernels), *map(str, values))
    return _digest(("tuning", *texts))


def _digest(parts: tuple[str, ...]) -> bytes:
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode()
        hasher.update(b"%d:" % len(data))
        hasher.update(data)
    return hasher.digest()
