"""Sources of Triton kernels that attack the farm, each with the error that it must get.

If a service evaluated one of those that call something, the file `CANARY` would exist.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.heavy_kernels import BROKEN, ENDLESS, HUGE, bodies, kernel_of

CANARY = Path(tempfile.gettempdir()) / "kernelfarm-hostile-kernel-was-here"
_TOUCH = f"open('{CANARY}', 'w')"


@dataclass(frozen=True, slots=True)
class HostileKernel:
    """A source, and a part of the message that refuses it."""

    name: str
    text: str
    message: str


def hostile_kernels() -> tuple[HostileKernel, ...]:
    """The corpus; names are distinct."""
    return tuple(
        HostileKernel(f"{family}-{number}", text, message)
        for family, cases in _FAMILIES.items()
        for number, (text, message) in enumerate(cases)
    )


def _in_every_position(expression: str, message: str) -> Iterator[tuple[str, str]]:
    """A kernel for each kind of place in which an expression may be."""
    for body in (
        f"a = {expression}",
        f"tl.store(x_ptr, {expression})",
        f"tl.load(x_ptr, mask={expression})",
        f"if {expression}:\n    pass",
        f"for i in range({expression}):\n    pass",
        f"while n < {expression}:\n    pass",
        f"return {expression}",
        f"a = x_ptr[{expression}]",
        f"a = n + {expression}",
        f"a = (1, {expression})",
        f"a = -{expression}",
        f"a = n if {expression} else 0",
        f"assert n, {expression}",
        f"n += {expression}",
        f"a = n < {expression} < 3",
        f"a = n and {expression}",
        f"a: {expression} = 1",
        f"a = x_ptr[1:{expression}]",
    ):
        yield kernel_of(body), message


_IMPORTS = [
    *bodies(
        "a statement of type Import",
        "import os",
        "import os, sys",
        "import os as tl",
        "from os import system",
        "from . import x",
        "from triton import language",
        "if n:\n    import subprocess",
        "for i in range(3):\n    import ctypes",
        "while n:\n    import socket",
    ),
    ("import os\ndef kernel(x_ptr):\n    pass\n", "of type Import outside of functions"),
    ("from os import *\ndef kernel(x_ptr):\n    pass\n", "of type ImportFrom outside"),
    ("from __future__ import annotations\ndef kernel(x):\n    pass\n", "outside of functions"),
    *bodies(
        "the name '__import__'", "a = __import__", "a = (__import__, 1)", "tl.load(__import__)"
    ),
    *bodies(
        "a call of '__import__'",
        "__import__('os')",
        "a = __import__('os')",
        "tl.store(x_ptr, __import__('os'))",
    ),
]
_CALLS = [
    *(
        case
        for name in (
            "eval",
            "exec",
            "compile",
            "open",
            "getattr",
            "setattr",
            "delattr",
            "vars",
            "globals",
            "locals",
            "type",
            "super",
            "input",
            "breakpoint",
            "print",
            "isinstance",
            "hasattr",
            "memoryview",
            "object",
            "id",
            "iter",
            "next",
            "map",
            "zip",
            "exit",
            "help",
            "dir",
            "str",
        )
        for case in bodies(f"a call of '{name}'", f"a = {name}('1')")
    ),
    *_in_every_position(_TOUCH, "a call of 'open'"),
    *bodies(
        "expected a function's name",
        "x_ptr[0](1)",
        "(1)(2)",
        "(n if n else n)(1)",
        "tl.load(x_ptr)(1)",
        "'os'('id')",
    ),
    *bodies("a call of the variable", "n(1)", "a = x_ptr\na(1)", "range = n\nrange(3)"),
    *bodies("the attribute 'system'", "n.system('id')", "x_ptr.os.system('id')"),
]
_ATTRIBUTES = [
    *(
        case
        for name in (
            "__class__",
            "__bases__",
            "__subclasses__",
            "__globals__",
            "__builtins__",
            "__dict__",
            "__code__",
            "__init__",
            "__mro__",
            "__getattribute__",
            "__reduce__",
            "__module__",
            "_builder",
            "handle",
            "fn",
            "raw_src",
            "func_globals",
            "gi_frame",
            "f_back",
            "tb_frame",
            "format",
            "format_map",
            "encode",
            "join_",
            "mangle",
            "to_ir",
            "codegen_name",
        )
        for case in bodies(f"the attribute '{name}'", f"a = n.{name}")
    ),
    *_in_every_position("().__class__.__bases__", "the attribute '__bases__'"),
    *bodies(
        "the attribute '__class__'", "a = n.T.__class__", "a = (1).__class__", "a = ''.__class__"
    ),
    *bodies("the attribute 'mro'", "a = n.dtype.mro", "a = tl.float32.mro"),
    *bodies("tl.core", "a = tl.core", "tl.core.builtin(n)", "a = tl.core.os"),
    *bodies("tl.extra", "a = tl.extra.cuda.libdevice.exp(n)", "a = tl.extra"),
    *bodies(
        "read files", "tl.inline_asm_elementwise('.incbin \"/etc/passwd\"', '=r', [], n, True, 1)"
    ),
    *bodies("shows no output", "tl.static_print(n)", "tl.static_print('a')"),
    *bodies("no place for its output", "tl.device_print('x', n)"),
    *bodies("tl.__", "a = tl.__dict__", "a = tl.__builtins__", "tl.__loader__.load_module('os')"),
    *bodies("tl.semantic", "a = tl.semantic", "tl.semantic.os.system('id')"),
    *bodies("tl.math.core", "a = tl.math.core", "a = tl.math.core.builtin"),
    *bodies("triton.runtime", "a = triton.runtime", "triton.runtime.driver(1)"),
    *bodies("triton.compile", "a = triton.compile(n)", "triton.compile('x')"),
    *bodies("triton.testing", "a = triton.testing.os"),
    *bodies("triton.jit", "a = triton.jit(n)"),
    *bodies("libdevice.os", "a = libdevice.os.system('id')"),
    *bodies("libdevice.core", "libdevice.core.extern_elementwise('x', '/tmp/x.bc', [n], {})"),
    *bodies("tl as a value", "a = tl", "a = (tl, 1)", "tl.load(tl)", "a = tl[0]"),
    *bodies("triton as a value", "a = triton", "a = -triton"),
    *bodies("tl.math as a value", "a = tl.math", "tl.load(tl.math)"),
]
_NAMES = [
    *(
        case
        for name in (
            "os",
            "sys",
            "__builtins__",
            "__file__",
            "__name__",
            "self",
            "torch",
            "Exception",
        )
        for case in bodies(f"the name '{name}'", f"a = {name}")
    ),
    *bodies("an assignment to 'tl'", "tl = n", "tl, a = n, n", "for tl in range(3):\n    pass"),
    *bodies("an assignment to 'triton'", "triton = n", "triton: tl.constexpr = 1"),
    *bodies("an assignment to '__", "__builtins__ = n", "__x = 1"),
    *bodies("an assignment to 'n.x'", "n.x = 1", "n.x += 1", "n.x: tl.constexpr = 1"),
    *bodies("an assignment to 'n[0]'", "n[0] = 1", "n[0] += 1", "(n[0], a) = 1, 2"),
    *bodies("an assignment to '*a'", "*a, b = n", "[*a] = n"),
    ("def kernel(tl):\n    pass\n", "an assignment to 'tl'"),
    ("def kernel(__x):\n    pass\n", "an assignment to '__x'"),
    ("tl = 1\ndef kernel(x):\n    pass\n", "has a meaning of its own"),
    ("range = 1\ndef kernel(x):\n    pass\n", "has a meaning of its own"),
    ("__all__ = 1\ndef kernel(x):\n    pass\n", "has a meaning of its own"),
    ("def tl(x):\n    pass\n", "has a meaning of its own"),
    ("def f(x):\n    pass\ndef f(x):\n    pass\n", "is defined twice"),
    ("f = 1\ndef f(x):\n    pass\n", "is defined twice"),
    ("A = 1\ndef kernel(x):\n    A = 2\n", "an assignment to 'A'"),
    ("def f(x):\n    pass\ndef kernel(x):\n    f = 2\n", "an assignment to 'f'"),
    ("def f(x):\n    pass\ndef kernel(x):\n    a = f\n", "the function f as a value"),
]
_DEFINITIONS = [
    (f"@{_TOUCH}\ndef kernel(x):\n    pass\n", "has decorators"),
    ("@triton.jit\ndef kernel(x):\n    pass\n", "has decorators"),
    ("@eval\ndef kernel(x):\n    pass\n", "has decorators"),
    ("@(lambda f: f)\ndef kernel(x):\n    pass\n", "has decorators"),
    (f"def kernel(x={_TOUCH}):\n    pass\n", "a default is"),
    ("def kernel(x=[].__class__):\n    pass\n", "a default is"),
    ("def kernel(x=1 + 1):\n    pass\n", "a default is"),
    ("def kernel(x=[1]):\n    pass\n", "a default is"),
    ("def kernel(x={}):\n    pass\n", "a default is"),
    ("def kernel(x=lambda: 1):\n    pass\n", "a default is"),
    ("def kernel(x=f'{1}'):\n    pass\n", "a default is"),
    ("def kernel(x=tl.load):\n    pass\n", "a default is"),
    ("def kernel(x=b'a'):\n    pass\n", "a literal of type bytes"),
    ("def kernel(x=(1, (2, print))):\n    pass\n", "a default is"),
    ("def kernel(x=float('1' * 9)):\n    pass\n", "a default is"),
    (f"def kernel(x: {_TOUCH}):\n    pass\n", "annotated with"),
    ("def kernel(x: 'tl.constexpr'):\n    pass\n", "annotated with"),
    ("def kernel(x: tl.tensor):\n    pass\n", "annotated with"),
    ("def kernel(x: int):\n    pass\n", "annotated with"),
    (f"def kernel(x) -> {_TOUCH}:\n    pass\n", "the type of its result"),
    ("def kernel(x) -> None:\n    pass\n", "the type of its result"),
    ("def kernel(*x):\n    pass\n", "parameters with * or /"),
    ("def kernel(**x):\n    pass\n", "parameters with * or /"),
    ("def kernel(x, /):\n    pass\n", "parameters with * or /"),
    ("def kernel(*, x):\n    pass\n", "parameters with * or /"),
    ("async def kernel(x):\n    pass\n", "of type AsyncFunctionDef outside"),
    ("class kernel:\n    x = print(1)\n", "of type ClassDef outside"),
    ("kernel = lambda x: x\n", "the constant kernel is"),
    (f"A = {_TOUCH}\ndef kernel(x):\n    pass\n", "the constant A is"),
    ("A = [1 for i in range(9)]\ndef kernel(x):\n    pass\n", "the constant A is"),
    ("A = 1 << 9\ndef kernel(x):\n    pass\n", "the constant A is"),
    ("A = B = 1\ndef kernel(x):\n    pass\n", "of type Assign outside"),
    ("A, B = 1, 2\ndef kernel(x):\n    pass\n", "of type Assign outside"),
    ("A: int = 1\ndef kernel(x):\n    pass\n", "of type AnnAssign outside"),
    ("A += 1\ndef kernel(x):\n    pass\n", "of type AugAssign outside"),
    (f"{_TOUCH}\ndef kernel(x):\n    pass\n", "of type Expr outside"),
    ("'a docstring'\ndef kernel(x):\n    pass\n", "of type Expr outside"),
    ("if 1:\n    def kernel(x):\n        pass\n", "of type If outside"),
    ("while True:\n    pass\n", "of type While outside"),
    ("del kernel\n", "of type Delete outside"),
    ("", "defines no function"),
    ("A = 1\n", "defines no function"),
]
_STATEMENTS = [
    (kernel_of(body), f"a statement of type {kind}")
    for kind, body in {
        "FunctionDef": "def f():\n    pass",
        "AsyncFunctionDef": "async def f():\n    pass",
        "ClassDef": "class A:\n    pass",
        "Delete": "del n",
        "With": "with n:\n    pass",
        "Raise": "raise n",
        "Try": "try:\n    pass\nfinally:\n    pass",
        "Global": "global os",
        "Break": "for i in range(3):\n    break",
        "Continue": "for i in range(3):\n    continue",
        "Match": "match n:\n    case 1:\n        pass",
    }.items()
]
_EXPRESSIONS = [
    *(
        (kernel_of(f"a = {text}"), f"an expression of type {kind}")
        for kind, text in {
            "Lambda": "lambda: 1",
            "ListComp": "[i for i in range(9)]",
            "SetComp": "{i for i in n}",
            "DictComp": "{i: i for i in n}",
            "GeneratorExp": "(i for i in n)",
            "Dict": "{1: 2}",
            "Set": "{1, 2}",
            "JoinedStr": "f'{n}'",
            "NamedExpr": "(b := 1)",
            "Yield": "(yield n)",
            "YieldFrom": "(yield from n)",
            "Await": "(await n)",
        }.items()
    ),
    *bodies("an expression of type Starred", "tl.load(*n)", "a = (*n, 1)", "a = tl.cat(*[n, n])"),
    *bodies("an argument with **", "tl.load(**n)", "tl.store(x_ptr, n, **{'mask': 1})"),
    *bodies("the operator MatMult", "a = n @ n", "n @= n"),
    *bodies("the comparison In", "a = 1 in n", "a = 'x' in 'xyz'"),
    *bodies("the comparison NotIn", "a = 1 not in n"),
    *bodies("without use", "n", "n.T", "1", "n + 1"),
]
_FORMATS = [
    *bodies(
        "without percent signs", "a = '%s'", "tl.load(x_ptr, other='%n')", "a = '{0.__class__}'"
    ),
    *bodies(
        "without percent signs", "tl.device_assert(n, '{n.__class__}')", "assert n, '%1000000000d'"
    ),
    *bodies(
        "without percent signs",
        "a = '\\x00'",
        "a = '\\n'",
        "a = '\\\\'",
        "a = '$(id)'",
        "a = '`id`'",
    ),
    *bodies("arithmetic with the text", "a = 'x' % n", "a = 'x' * 1000000000", "a = n + 'x'"),
    *bodies("the attribute 'format'", "a = '0'.format(n)", "a = n.dtype.format(n)"),
    *bodies("the attribute 'join'", "a = ''.join(n)"),
    *bodies(
        "an expression of type JoinedStr",
        "tl.static_assert(n, f'{n.__class__}')",
        "a = f'{n!r:>99}'",
    ),
    *bodies("a literal of type bytes", "a = b'x'", "tl.load(b'/etc/passwd')"),
    *bodies("a literal of type complex", "a = 1j"),
    *bodies("a literal of type ellipsis", "a = x_ptr[...]", "a = ..."),
    *bodies("the float is", "a = float('1e999')", "a = float('os')"),
]
_FAMILIES = {
    "imports": _IMPORTS,
    "calls": _CALLS,
    "attributes": _ATTRIBUTES,
    "names": _NAMES,
    "definitions": _DEFINITIONS,
    "statements": _STATEMENTS,
    "expressions": _EXPRESSIONS,
    "formats": _FORMATS,
    "huge": HUGE,
    "endless": ENDLESS,
    "broken": BROKEN,
}
