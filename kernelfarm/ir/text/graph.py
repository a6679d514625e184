"""Text of graphs.

graph prims 1
size s0 from 2 to 512 hint 64
location "model.py:12"
%0: f32[s0, 128]@[128, 1] = input "x"
%1 = integer s0 "n"
%2: i64[1] = constant "<sha256>" "<data>"
%3: f32[s0] = sum(%0; dims=[1]) from [4, 5] at 1
hint 4 num_warps=8
return %3: f32[s0]@[1], {s0 + 1}, none, %4: f32[s0, 128]@[128, 1] into %0
"""

from __future__ import annotations

from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.graph_ir import (
    Arg,
    Constant,
    Graph,
    Input,
    Node,
    SizeSymbol,
    TensorType,
    Update,
)
from kernelfarm.ir.hints import KernelHint, NodeHint
from kernelfarm.ir.text.args import print_arg, print_type, read_arg, read_list, read_type
from kernelfarm.ir.text.tokens import Cursor, is_word, quoted
from kernelfarm.ir.work_budget import counted


def print_graph(graph: Graph) -> str:
    """The graph as text, which `parse_graph` parses to an equal graph."""
    lines = [f"graph {graph.dialect} {graph.abi_version}"]
    lines.extend(print_size(size) for size in graph.symbols)
    lines.extend(f"location {quoted(location)}" for location in graph.locations)
    lines.extend(_print_input(source) for source in graph.inputs)
    lines.extend(counted(_print_node(node)) for node in graph.nodes)
    updated = {u.output: f" into %{graph.inputs[u.input].value}" for u in graph.updates}
    lines.extend(f"hint {found.node} {found.hint}" for found in graph.kernel_hints)
    pairs = enumerate(zip(graph.outputs, graph.output_types, strict=True))
    outputs = (_print_output(*pair) + updated.get(number, "") for number, pair in pairs)
    lines.append(f"return {', '.join(outputs)}".rstrip())
    return "\n".join(lines) + "\n"


def parse_graph(text: str) -> Graph:
    """The graph of a text.

    Raises:
        MalformedMessageError: the text is not a graph; the message names the line.
    """
    return _Parser().parsed(text)


def print_size(size: SizeSymbol) -> str:
    """A size symbol with its range: `size s0 from 2 to 512 hint 64`."""
    upper = "" if size.upper is None else f" to {size.upper}"
    hint = "" if size.hint is None else f" hint {size.hint}"
    return f"size {size.name} from {size.lower}{upper}{hint}"


def read_size(cursor: Cursor) -> SizeSymbol:
    """Reads a size symbol after its keyword."""
    name = cursor.word()
    cursor.expect("from")
    lower = cursor.integer()
    upper = cursor.integer() if cursor.accept("to") else None
    hint = cursor.integer() if cursor.accept("hint") else None
    return SizeSymbol(name, lower, upper, hint)


def read_kernel_hint(cursor: Cursor) -> KernelHint:
    """Reads a hint: a name, and a number if there is one."""
    name = cursor.word()
    return KernelHint(name, cursor.integer() if cursor.accept("=") else None)


def _print_input(source: Input) -> str:
    name = f" {quoted(source.name)}" if source.name else ""
    match source.kind:
        case TensorType() as tensor:
            return f"%{source.value}: {print_type(tensor)} = input{name}"
        case Constant(tensor, sha256, data):
            content = f"{quoted(sha256.hex())} {quoted(data.hex())}"
            return f"%{source.value}: {print_type(tensor)} = constant {content}{name}"
        case size:
            return f"%{source.value} = integer {size}{name}"


def _print_node(node: Node) -> str:
    results = ", ".join(
        f"%{value}: {print_type(tensor)}"
        for value, tensor in zip(node.results, node.types, strict=True)
    )
    args = ", ".join(map(print_arg, node.args))
    attrs = ", ".join(f"{_name(name)}={print_arg(arg)}" for name, arg in node.attrs)
    joined = f"{args}; {attrs}".strip() if attrs else args
    text = f"{results} = {_name(node.op)}({joined})".strip()
    if node.origins:
        text += f" from [{', '.join(map(str, node.origins))}]"
    return f"{text} at {node.location}" if node.location else text


def _name(text: str) -> str:
    return text if is_word(text) else quoted(text)


def _print_output(output: Arg, tensor: TensorType | None) -> str:
    text = print_arg(output)
    return text if tensor is None else f"{text}: {print_type(tensor)}"


class _Parser:
    """The parts of a graph that have been read."""

    def __init__(self) -> None:
        self.symbols: list[SizeSymbol] = []
        self.locations: list[str] = []
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.updates: list[Update] = []
        self.hints: list[NodeHint] = []

    def parsed(self, text: str) -> Graph:
        head: tuple[str, int] | None = None
        outputs: list[tuple[Arg, TensorType | None]] | None = None
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            cursor = Cursor(line, number)
            if head is None:
                cursor.expect("graph")
                head = (cursor.word(), cursor.integer())
            elif cursor.accept("return"):
                outputs = self._read_outputs(cursor)
            else:
                self._read_line(cursor)
            cursor.end()
        if head is None or outputs is None:
            raise MalformedMessageError("a graph without its first line or without return")
        return Graph(
            dialect=head[0],
            symbols=tuple(self.symbols),
            inputs=tuple(self.inputs),
            nodes=tuple(self.nodes),
            outputs=tuple(output for output, _ in outputs),
            output_types=tuple(tensor for _, tensor in outputs),
            locations=tuple(self.locations),
            abi_version=head[1],
            updates=tuple(self.updates),
            kernel_hints=tuple(self.hints),
        )

    def _read_line(self, cursor: Cursor) -> None:
        if cursor.accept("size"):
            self.symbols.append(read_size(cursor))
        elif cursor.accept("location"):
            self.locations.append(cursor.string())
        elif cursor.accept("hint"):
            self.hints.append(NodeHint(cursor.integer(), read_kernel_hint(cursor)))
        else:
            self._read_definition(cursor)

    def _read_outputs(self, cursor: Cursor) -> list[tuple[Arg, TensorType | None]]:
        input_numbers = {source.value: number for number, source in enumerate(self.inputs)}
        outputs: list[tuple[Arg, TensorType | None]] = []
        while cursor.next[0] != "end":
            if outputs:
                cursor.expect(",")
            output = read_arg(cursor)
            outputs.append((output, read_type(cursor) if cursor.accept(":") else None))
            if cursor.accept("into"):
                value = cursor.value()
                if value not in input_numbers:
                    raise cursor.error(f"%{value} is no input; expected one")
                self.updates.append(Update(len(outputs) - 1, input_numbers[value]))
        return outputs

    def _read_definition(self, cursor: Cursor) -> None:
        values, types = _read_results(cursor)
        cursor.expect("=")
        if cursor.accept("integer"):
            self.inputs.append(Input(values[0], cursor.word(), _read_name(cursor)))
            return
        if len(types) != len(values):
            raise cursor.error("expected a type for each value")
        if cursor.accept("input"):
            self.inputs.append(Input(values[0], types[0], _read_name(cursor)))
        elif cursor.accept("constant"):
            sha256, data = bytes.fromhex(cursor.string()), bytes.fromhex(cursor.string())
            constant = Constant(types[0], sha256, data)
            self.inputs.append(Input(values[0], constant, _read_name(cursor)))
        else:
            self.nodes.append(_read_node(cursor, tuple(values), tuple(types)))


def _read_name(cursor: Cursor) -> str:
    return cursor.string() if cursor.next[0] == "string" else ""


def _read_results(cursor: Cursor) -> tuple[list[int], list[TensorType]]:
    values: list[int] = []
    types: list[TensorType] = []
    while cursor.next[1] == "%":
        values.append(cursor.value())
        if cursor.accept(":"):
            types.append(read_type(cursor))
        cursor.accept(",")
    return values, types


def _read_node(cursor: Cursor, values: tuple[int, ...], types: tuple[TensorType, ...]) -> Node:
    op = _read_op(cursor)
    args: list[Arg] = []
    attrs: list[tuple[str, Arg]] = []
    cursor.expect("(")
    while cursor.next[1] not in (")", ";"):
        args.append(read_arg(cursor))
        if not cursor.accept(","):
            break
    if cursor.accept(";"):
        while True:
            name = _read_op(cursor)
            cursor.expect("=")
            attrs.append((name, read_arg(cursor)))
            if not cursor.accept(","):
                break
    cursor.expect(")")
    origins = read_list(cursor, Cursor.integer) if cursor.accept("from") else ()
    location = cursor.integer() if cursor.accept("at") else 0
    return Node(op, tuple(args), tuple(attrs), values, types, origins, location)


def _read_op(cursor: Cursor) -> str:
    return cursor.string() if cursor.next[0] == "string" else cursor.word()
