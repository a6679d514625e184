"""Reads a tile program from the text that TVM prints of a `prim_func`.

The text is parsed, never executed. Everything that is not in the closed set of forms below is
refused with its line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from kernelfarm.client.tilelang.program import (
    Atomic,
    Branch,
    Buffer,
    Copy,
    Fill,
    Let,
    Loop,
    Parallel,
    Product,
    Reduce,
    Region,
    Scan,
    Statement,
    Store,
    Tensor,
    Tile,
    TileProgram,
)
from kernelfarm.client.tilelang.syntax import (
    call_of,
    dtype_of,
    entries_of,
    indices_of,
    integer_of,
    integers_of,
    items_of,
    keywords_of,
    name_of,
    refuse,
    truth_of,
)
from kernelfarm.errors import TileProgramError

_MAX_TEXT_BYTES: Final = 128 << 10
_MAX_NODES: Final = 20_000
_AXES: Final = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
_TILE_SCOPES: Final = frozenset({"shared", "shared.dyn", "local.fragment"})
# Hints on layouts and order, which the farm's toolchains decide themselves.
_IGNORED_CALLS: Final = frozenset({"reads", "writes", "func_attr", "attr"})


def read_program(program: Any) -> TileProgram:
    """The tile program of a text, or of an object of TileLang or TVM that prints as one.

    Raises:
        TileProgramError: it is no such text, or has a form that is not accepted.
    """
    text = program if isinstance(program, str) else _printed(program)
    if len(text.encode()) > _MAX_TEXT_BYTES:
        raise TileProgramError(
            f"the text has {len(text.encode())} bytes; expected at most {_MAX_TEXT_BYTES}"
        )
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TileProgramError(f"the text is not Python's syntax: {error}") from error
    if sum(1 for _ in ast.walk(module)) > _MAX_NODES:
        raise TileProgramError(f"the text has more than {_MAX_NODES} nodes of syntax")
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    if len(functions) != 1 or len(module.body) != 1:
        raise TileProgramError(
            "expected the text of one T.prim_func, as `print(prim_func.script())` shows it"
        )
    try:
        return _Reader().program(functions[0])
    except (IndexError, ValueError) as error:  # too few arguments, or too many
        raise TileProgramError(
            "a call has other arguments than TVM prints; expected the unchanged text of"
            " prim_func.script()"
        ) from error


def _printed(program: Any) -> str:
    """The text of a `PrimFunc`, or of a compiled kernel of TileLang."""
    function = getattr(program, "prim_func", program)
    script = getattr(function, "script", None)
    if not callable(script):
        raise TileProgramError(
            f"a {type(program).__name__} is no tile program; expected a T.prim_func, a kernel that"
            " tilelang.jit compiled, or the text of one"
        )
    return str(script())


class _Reader:
    def __init__(self) -> None:
        self._buffers: dict[str, Buffer] = {}
        self._tensors: list[Tensor] = []
        self._handles: list[str] = []
        self._sizes: list[str] = []
        self._tiles: list[Tile] = []
        self._grid: list[tuple[str, ast.expr]] = []
        self._outputs: tuple[int, ...] = ()
        self._threads = 0

    def program(self, function: ast.FunctionDef) -> TileProgram:
        self._handles = [arg.arg for arg in function.args.args]
        body = self._prologue(function.body)
        statements = tuple(self._block(body))
        if not self._threads:
            refuse(function, "a program without T.Kernel")
        by_handle = [t for t in self._tensors if t.name in self._buffers]
        count = len(by_handle)
        return TileProgram(
            function.name,
            tuple(by_handle),
            tuple(self._sizes),
            tuple(self._grid),
            self._threads,
            tuple(self._tiles),
            statements,
            tuple(position % count for position in self._outputs if -count <= position < count),
        )

    def _prologue(self, body: Sequence[ast.stmt]) -> Sequence[ast.stmt]:
        """Reads parameters and grid; gives the statements of a block."""
        for number, node in enumerate(body):
            if isinstance(node, ast.For):
                self._bind(node)
                return self._prologue(node.body)
            if isinstance(node, ast.With):
                if number + 1 != len(body):
                    refuse(body[number + 1], "a second T.Kernel")
                return node.body
            if isinstance(node, ast.AnnAssign):  # the indices of threads
                continue
            self._declare(node)
        refuse(body[-1], "a program without T.Kernel")

    def _bind(self, node: ast.For) -> None:
        name, args = call_of(node.iter)
        keywords = keywords_of(node.iter)
        thread = keywords.get("thread")
        axis = thread.value if isinstance(thread, ast.Constant) else None
        is_next = axis in _AXES and _AXES.index(axis) == len(self._grid)
        if name != "thread_binding" or len(args) != 1 or not is_next:
            refuse(node, "a loop outside of T.Kernel, or one over threads")
        self._grid.append((name_of(node.target), args[0]))

    def _declare(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Expr):
            name, args = call_of(node.value)
            if name == "func_attr" and args and isinstance(args[0], ast.Dict):
                self._read_outputs(args[0])
            return
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            refuse(node, "this statement before T.Kernel")
        target = name_of(node.targets[0])
        name, args = call_of(node.value)
        if name in ("int32", "int64") and not args:
            self._sizes.append(target)
        elif name == "match_buffer":
            self._match(node, target, args)
        else:
            refuse(node, f"T.{name} before T.Kernel")

    def _read_outputs(self, attributes: ast.Dict) -> None:
        for key, value in zip(attributes.keys, attributes.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "tilelang_out_idx":
                self._outputs = tuple(integers_of(value))

    def _match(self, node: ast.Assign, target: str, args: Sequence[ast.expr]) -> None:
        keywords = keywords_of(node.value)
        handle = name_of(args[0])
        position = len(self._tensors)
        if position >= len(self._handles) or self._handles[position] != handle:
            refuse(node, "parameters in another order than their buffers")
        strides = keywords.get("strides")
        shape = items_of(args[1])
        if strides is None:
            refuse(node, "a buffer without strides")
        tensor = Tensor(target, shape, items_of(strides), dtype_of(node, args[2:], keywords))
        self._tensors.append(tensor)
        self._buffers[target] = tensor

    def _block(self, body: Sequence[ast.stmt]) -> Iterator[Statement]:
        for node in body:
            found = self._statement(node)
            if found is not None:
                yield found

    def _statement(self, node: ast.stmt) -> Statement | None:
        match node:
            case ast.Expr():
                return self._effect(node)
            case ast.Assign(targets=[ast.Name(id=target)]):
                self._allocate(node, target)
                return None
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value):
                return Let(target, value)
            case ast.Assign(targets=[ast.Subscript()]):
                return Parallel((), (self._store(node),))
            case ast.If(test=test, body=then, orelse=otherwise):
                return Branch(test, tuple(self._block(then)), tuple(self._block(otherwise)))
            case ast.For():
                return self._loop(node)
        refuse(node, "this statement")

    def _allocate(self, node: ast.Assign, target: str) -> None:
        name, args = call_of(node.value)
        if name == "handle":  # the data of a buffer with a layout
            return
        keywords = keywords_of(node.value)
        if name not in ("sblock_alloc_buffer", "alloc_buffer"):
            refuse(node, f"T.{name} as a statement")
        scope = keywords.get("scope")
        found = scope.value if isinstance(scope, ast.Constant) else "global"
        if found not in _TILE_SCOPES:
            refuse(node, f"memory of scope {found!r} (T.alloc_var, T.alloc_local)")
        tile = Tile(target, tuple(integers_of(args[0])), dtype_of(node, args[1:], keywords))
        self._tiles.append(tile)
        self._buffers[target] = tile

    def _effect(self, node: ast.Expr) -> Statement | None:
        name, args = call_of(node.value)
        if name == "sblock_attr":
            self._read_threads(node, args)
            return None
        if name in _IGNORED_CALLS:
            return None
        readers: Mapping[str, Callable[[Sequence[ast.expr]], Statement]] = {
            "fill": lambda args: Fill(self._region(args[0]), args[1]),
            "copy": lambda args: Copy(self._region(args[0]), self._region(args[1])),
            "atomicadd": lambda args: Atomic(self._region(args[0]), self._region(args[1])),
            "gemm": self._product,
            "reduce": self._reduce,
            "cumsum": self._scan,
        }
        if name == "atomic_add_elem_op":
            return Parallel((), (self._atomic(node, args),))
        if name not in readers:
            refuse(node, f"T.{name}")
        try:
            return readers[name](args)
        except (IndexError, ValueError):
            refuse(node, f"these arguments of T.{name}")

    def _read_threads(self, node: ast.Expr, args: Sequence[ast.expr]) -> None:
        for key, value in entries_of(node, args):
            if key == "tl.launch_threads":
                count = 1
                for extent in integers_of(value):
                    count *= extent
                self._threads = count

    def _product(self, args: Sequence[ast.expr]) -> Product:
        left, right, target = (self._region(arg) for arg in args[:3])
        return Product(left, right, target, truth_of(args[3]), truth_of(args[4]), truth_of(args[9]))

    def _reduce(self, args: Sequence[ast.expr]) -> Reduce:
        source, target = self._region(args[0]), self._region(args[1])
        kind = args[2].value if isinstance(args[2], ast.Constant) else ""
        return Reduce(source, target, str(kind), integer_of(args[3]), truth_of(args[4]))

    def _scan(self, args: Sequence[ast.expr]) -> Scan:
        source, target = self._region(args[0]), self._region(args[1])
        return Scan(source, target, integer_of(args[2]), truth_of(args[3]))

    def _loop(self, node: ast.For) -> Statement:
        kind, args = call_of(node.iter, allows_range=True)
        target = name_of(node.target)
        if kind in ("parallel", "vectorized"):
            return self._parallel(node)
        if kind not in ("serial", "range", "unroll") or len(args) not in (1, 2):
            refuse(node, f"a loop over T.{kind}")
        begin = args[0] if len(args) == 2 else ast.Constant(0)
        annotations = keywords_of(node.iter).get("annotations")
        stages = 0
        if annotations is not None:
            for key, value in entries_of(node, [annotations]):
                if key == "num_stages":
                    stages = integer_of(value)
        return Loop(target, begin, args[-1], stages, tuple(self._block(node.body)))

    def _parallel(self, node: ast.For) -> Parallel:
        axes: list[tuple[str, int]] = []
        body: Sequence[ast.stmt] = [node]
        while len(body) == 1 and isinstance(inner := body[0], ast.For):
            kind, args = call_of(inner.iter, allows_range=True)
            if kind not in ("parallel", "vectorized") or len(args) != 1:
                refuse(inner, f"a loop over T.{kind} in one over T.Parallel")
            axes.append((name_of(inner.target), integer_of(args[0])))
            body = inner.body
        return Parallel(tuple(axes), tuple(self._lane(each) for each in body))

    def _lane(self, node: ast.stmt) -> Statement:
        match node:
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value):
                return Let(target, value)
            case ast.Assign(targets=[ast.Subscript()]):
                return self._store(node)
            case ast.If(test=test, body=then, orelse=otherwise):
                return Branch(
                    test,
                    tuple(self._lane(each) for each in then),
                    tuple(self._lane(each) for each in otherwise),
                )
            case ast.Expr(value=value):
                name, args = call_of(value)
                if name == "atomic_add_elem_op":
                    return self._atomic(node, args)
        refuse(node, "this statement in a loop over T.Parallel")

    def _store(self, node: ast.Assign) -> Store:
        target = node.targets[0]
        assert isinstance(target, ast.Subscript)
        return Store(self._buffer(target.value), indices_of(target), node.value)

    def _atomic(self, node: ast.AST, args: Sequence[ast.expr]) -> Store:
        name, pointer = call_of(args[0])
        if name != "access_ptr" or not isinstance(pointer[0], ast.Subscript) or len(args) < 2:
            refuse(node, "this form of T.atomic_add")
        element = pointer[0]
        return Store(self._buffer(element.value), indices_of(element), args[1], is_atomic=True)

    def _region(self, node: ast.expr) -> Region:
        name, args = call_of(node)
        if name != "region" or not isinstance(args[0], ast.Subscript):
            refuse(node, "an operand that is no region of a buffer")
        extents = tuple(integer_of(arg) for arg in args[2:])
        region = Region(self._buffer(args[0].value), indices_of(args[0]), extents)
        if not len(region.buffer.shape) == len(region.starts) == len(extents):
            refuse(node, "a region of another rank than its buffer")
        return region

    def _buffer(self, node: ast.expr) -> Buffer:
        found = self._buffers.get(name_of(node))
        if found is None:
            refuse(node, f"an unknown buffer {name_of(node)}")
        return found
