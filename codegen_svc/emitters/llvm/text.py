"""LLVM IR as text: one function at a time, with readable names and typed values."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from kernelfarm.ir.printable import printable_line

I1, I8, I16, I32, I64 = "i1", "i8", "i16", "i32", "i64"
HALF, FLOAT, DOUBLE, PTR = "half", "float", "double", "ptr"


@dataclass(frozen=True, slots=True)
class Value:
    """An operand: its text (`%x`, `0`) and its LLVM type."""

    text: str
    type: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


def integer(value: int, llvm_type: str) -> Value:
    """An integer constant, wrapped to its type's signed range."""
    bits = int(llvm_type[1:])
    if bits == 1:
        return Value("true" if value & 1 else "false", I1)
    wrapped = (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    return Value(str(wrapped), llvm_type)


def floating(value: float, llvm_type: str) -> Value:
    """A floating-point constant, rounded to its type: `half`, `float` or `double`."""
    if llvm_type == HALF:
        return Value(f"0xH{_packed_bits('e', value):04X}", HALF)
    if llvm_type == FLOAT:
        value = _rounded_to_f32(value)
    return Value(f"0x{_packed_bits('d', value):016X}", llvm_type)


def _rounded_to_f32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _packed_bits(form: str, value: float) -> int:
    try:
        packed = struct.pack(f"<{form}", value)
    except OverflowError:
        packed = struct.pack(f"<{form}", float("inf") if value > 0 else float("-inf"))
    return int.from_bytes(packed, "little")


def bits_type(llvm_type: str) -> str:
    """The integer type that is as wide as a floating-point type."""
    return {HALF: I16, FLOAT: I32, DOUBLE: I64}[llvm_type]


@dataclass
class ModuleText:
    """A module under construction: external declarations, constant tables, functions, metadata.

    `rounds_results`: all that is stored is rounded from f32 to bf16, by an instruction that may
    round subnormal results to 0. So f32 may be multiplied by the reciprocals of constants.
    `rounds_all`: an instruction rounds every f32 to bf16, and keeps subnormal results. `vscale` is
    the length of scalable vectors for which the functions are compiled, in pieces of 16 bytes.
    `has_nan_maximum`: one instruction gives the larger of two floats, or NaN if one of them is.
    """

    header: list[str]
    rounds_results: bool = False
    rounds_all: bool = False
    has_nan_maximum: bool = True
    vscale: int | None = None
    declarations: dict[str, str] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)

    def declare(self, name: str, result: str, arguments: tuple[str, ...]) -> None:
        """Declares an external function once."""
        self.declarations.setdefault(name, f"declare {result} @{name}({', '.join(arguments)})")

    def table(self, name: str, element: str, rows: list[str]) -> None:
        """Defines a private constant array once; `rows` are constants without their type."""
        body = ", ".join(f"{element} {row}" for row in rows)
        text = (
            f"@{name} = private unnamed_addr constant [{len(rows)} x {element}] [{body}], align 64"
        )
        self.tables.setdefault(name, text)

    def distinct_node(self, content: str) -> str:
        """Adds a metadata node, which may refer to itself by `!self`; returns its name."""
        name = f"!{len(self.metadata)}"
        self.metadata.append(f"{name} = {content.replace('!self', name)}")
        return name

    def shared_node(self, content: str) -> str:
        """The name of the metadata node with a content, which is added if it is new."""
        for number, line in enumerate(self.metadata):
            if line.endswith(f" = {content}"):
                return f"!{number}"
        return self.distinct_node(content)

    def render(self) -> str:
        """The module as LLVM assembly."""
        parts = [
            "\n".join(self.header),
            "\n".join(self.tables.values()),
            "\n\n".join(self.functions),
            "\n".join(self.declarations[name] for name in sorted(self.declarations)),
            "\n".join(self.metadata),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


class FunctionText:
    """One function under construction; instructions are appended to the current block."""

    def __init__(self, module: ModuleText, signature: str) -> None:
        self.module = module
        self._signature = signature
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._taken: dict[str, int] = {"entry": 1}
        self.block = "entry"
        # The name of values whose creator states none.
        self.topic = "v"
        # The number of calls of functions that the module defines.
        self.own_calls = 0

    def name(self, wish: str) -> str:
        """An unused name of a value or block, without its sigil."""
        count = self._taken.get(wish, 0)
        self._taken[wish] = count + 1
        return wish if count == 0 else f"{wish}.{count}"

    def emit(self, line: str) -> None:
        """Appends one instruction without a result."""
        self._lines.append(f"  {line}")

    def comment(self, text: str) -> None:
        """Appends a comment line."""
        self._lines.append("  ; " + printable_line(text))

    def define(self, wish: str, llvm_type: str, instruction: str) -> Value:
        """Appends an instruction and returns its result."""
        name = self.name(wish or self.topic)
        self._lines.append(f"  %{name} = {instruction}")
        return Value(f"%{name}", llvm_type)

    def alloca(self, wish: str, llvm_type: str, count: int = 1) -> Value:
        """A stack slot of `count` elements, allocated on entry."""
        name = self.name(wish)
        shape = llvm_type if count == 1 else f"[{count} x {llvm_type}]"
        self._entry.append(f"  %{name} = alloca {shape}, align {64 if count > 1 else 8}")
        return Value(f"%{name}", PTR)

    def start_block(self, label: str) -> None:
        """Starts a block; the previous one must have ended."""
        self._lines.append(f"{label}:")
        self.block = label

    def branch(self, label: str) -> None:
        """Ends the block with a jump."""
        self.emit(f"br label %{label}")

    def branch_if(self, condition: Value, then: str, other: str) -> None:
        """Ends the block with a conditional jump."""
        self.emit(f"br {condition}, label %{then}, label %{other}")

    def op(self, name: str, *operands: Value, wish: str = "") -> Value:
        """An instruction of one or two operands whose result has their type."""
        texts = ", ".join(v.text for v in operands)
        return self.define(wish, operands[0].type, f"{name} {operands[0].type} {texts}")

    def cast(self, name: str, value: Value, to: str, wish: str = "") -> Value:
        """A conversion; the value itself if it has the type already."""
        if value.type == to:
            return value
        return self.define(wish, to, f"{name} {value} to {to}")

    def compare(self, kind: str, predicate: str, a: Value, b: Value, wish: str = "") -> Value:
        """`icmp` or `fcmp`."""
        return self.define(wish, I1, f"{kind} {predicate} {a}, {b.text}")

    def select(self, condition: Value, a: Value, b: Value, wish: str = "") -> Value:
        """`a` if the condition holds, else `b`."""
        return self.define(wish, a.type, f"select {condition}, {a}, {b}")

    def call(self, name: str, result: str, *arguments: Value, wish: str = "") -> Value:
        """A call of a function that this module defines."""
        self.own_calls += not name.startswith("llvm.")
        return self.define(wish, result, f"call {result} @{name}({', '.join(map(str, arguments))})")

    def call_external(self, name: str, result: str, *arguments: Value, wish: str = "") -> Value:
        """A call of an intrinsic or library function, which is declared too."""
        self.module.declare(name, result, tuple(a.type for a in arguments))
        return self.call(name, result, *arguments, wish=wish)

    def intrinsic(self, name: str, *arguments: Value, wish: str = "") -> Value:
        """A call of `llvm.<name>.<type>`, whose arguments and result have one type."""
        llvm_type = arguments[0].type
        return self.call_external(
            f"llvm.{name}.{mangled(llvm_type)}", llvm_type, *arguments, wish=wish
        )

    def load(self, llvm_type: str, pointer: Value, align: int, wish: str = "") -> Value:
        """Loads a value from memory."""
        return self.define(wish, llvm_type, f"load {llvm_type}, {pointer}, align {align}")

    def store(self, value: Value, pointer: Value, align: int) -> None:
        """Stores a value in memory."""
        self.emit(f"store {value}, {pointer}, align {align}")

    def element(self, llvm_type: str, base: Value, index: Value, wish: str = "p") -> Value:
        """The address of an element."""
        return self.define(wish, PTR, f"getelementptr inbounds {llvm_type}, {base}, {index}")

    def finish(self) -> None:
        """Adds the function to its module."""
        body = "\n".join([f"{self._signature} {{", "entry:", *self._entry, *self._lines, "}"])
        self.module.functions.append(body)


def mangled(llvm_type: str) -> str:
    """The suffix of an overloaded intrinsic's name."""
    return {HALF: "f16", FLOAT: "f32", DOUBLE: "f64"}.get(llvm_type, llvm_type)
