"""The header of a trace: everything but the graph, with a strict schema.

    length of the header, header (JSON), graph (protobuf, as in a compile request)

This module needs no torch: commands describe a trace by its header.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelfarm.client.disk.files import sealed, unsealed
from kernelfarm.digest import MAX_PART_CHARS
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.graph_ir import Constant, Graph

Number = Annotated[int, Field(ge=0)]
TensorOption = bool | Annotated[str, Field(pattern="^(here|strided)$")] | None
Parts = dict[
    Annotated[str, Field(pattern="^[a-z_]{1,32}$")],
    Annotated[str, Field(max_length=MAX_PART_CHARS)],
]
WindowTexts = tuple[tuple[str, ...], tuple[str, ...], str]


class TraceHeader(BaseModel):
    """The header's fields; `parts` are the parts of the graph's digest.

    `module_outputs` has tuples of number, argument and view; `outputs` has tuples of argument,
    offset and varying axes.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    parts: Parts
    sources: tuple[Number | None, ...]
    module_outputs: tuple[tuple[Number, Number | None, WindowTexts | None], ...]
    negated: tuple[Number, ...]
    tensor_options: dict[
        Annotated[str, Field(pattern="^[0-9]{1,9}$")],
        dict[Annotated[str, Field(pattern="^(device|layout|pin_memory)$")], TensorOption],
    ]
    argument_count: Number
    outputs: tuple[tuple[Number | None, int | None, tuple[Number, ...]], ...]
    written: tuple[Number, ...]

    def check(self, graph: Graph) -> None:
        """Checks that the header refers only to existing nodes, outputs and arguments.

        Raises:
            MalformedMessageError: it does not fit the graph.
        """
        arguments = [source for source in self.sources if source is not None]
        arguments += [argument for _, argument, _ in self.module_outputs if argument is not None]
        arguments += [argument for argument, _, _ in self.outputs if argument is not None]
        arguments += [*self.negated, *self.written]
        results = [number for number, argument, _ in self.module_outputs if argument is None]
        is_whole = (
            len(self.sources) == len(graph.inputs)
            and len(self.outputs) == len(self.module_outputs)
            and all(number < self.argument_count for number in arguments)
            and all(number < len(graph.outputs) for number in results)
            and all(int(number) < len(graph.nodes) for number in self.tensor_options)
        )
        held = (
            given.kind
            for source, given in zip(self.sources, graph.inputs, strict=False)
            if source is None
        )
        if not is_whole or not all(isinstance(kind, Constant) for kind in held):
            raise MalformedMessageError("a trace whose header does not fit its graph")


_LENGTH_BYTES = 8


def joined(header: str, graph: bytes) -> bytes:
    """The bytes of a trace, from its header and its graph."""
    text = header.encode()
    return sealed(len(text).to_bytes(_LENGTH_BYTES, "little") + text + graph)


def parted(content: bytes) -> tuple[TraceHeader, bytes]:
    """The header and the encoded graph of a trace.

    Raises:
        MalformedMessageError: the bytes are not a trace.
    """
    try:
        rest = unsealed(content)
        length = int.from_bytes(rest[:_LENGTH_BYTES], "little")
        body = rest[_LENGTH_BYTES:]
        return TraceHeader.model_validate_json(body[:length]), body[length:]
    except (ValueError, ValidationError) as error:
        raise MalformedMessageError(f"not a trace: {error}") from error
