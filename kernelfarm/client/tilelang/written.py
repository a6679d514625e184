"""The parameters that a tile program writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelfarm.client.tilelang.program import (
    Atomic,
    Branch,
    Buffer,
    Copy,
    Fill,
    Loop,
    Parallel,
    Statement,
    Store,
    Tensor,
    TileProgram,
)


def written_params(program: TileProgram) -> tuple[int, ...]:
    """The positions of the tensors that some statement stores to, in order."""
    names = {buffer.name for buffer in _targets(program.body) if isinstance(buffer, Tensor)}
    return tuple(n for n, param in enumerate(program.params) if param.name in names)


def _targets(body: Sequence[Statement]) -> Iterator[Buffer]:
    for statement in body:
        match statement:
            case Fill(target=region) | Copy(target=region) | Atomic(target=region):
                yield region.buffer
            case Store(buffer=buffer):
                yield buffer
            case Loop(body=inside) | Parallel(body=inside):
                yield from _targets(inside)
            case Branch(then=then, otherwise=otherwise):
                yield from _targets(then)
                yield from _targets(otherwise)
