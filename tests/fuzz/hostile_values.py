"""Values that break assumptions: the limits of every type, and names that break parsers."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field

from frontend_svc.operators import DECOMPOSED
from kernelfarm.ir.prims import PRIMS
from kernelfarm.targets import all_targets

INTEGERS = (
    *(0, 1, -1, 2, -2, 3, 7, 8, 16, 63, 64, 65, 127, 128, 255, 256, 1000, 1024, 4096, 65535, 65536),
    *(10**6, 10**9, 10**12, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**61, 2**62, 2**63 - 1),
    *(-8, -64, -1000, -(2**31), -(2**32), -(2**62), -(2**63) + 1, -(2**63)),
)
REALS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 1e-3, math.pi, 1e308, -1e308, 1.7976931348623157e308, 5e-324),
    *(1e-310, 2.0**53, 2.0**63, 2.0**64, -(2.0**63), 1e19, 3.4e38, 65504.0, 1e5, 1e9),
    *(math.inf, -math.inf, math.nan),
)
NAMES = (
    *("", " ", "s0", "s1", "0", "-1", "a b", "x" * 300, "y" * 20_000, "\n", "a\nb", "\0", "s0\0"),
    *(
        "%0",
        "%7",
        "in0",
        "out0",
        "tmp0",
        "{s0}",
        "s0 + s1",
        "//",
        "µ",
        "\u202eabc",
        "\U0001d518" * 40,
        "'\"",
    ),
    *(
        "None",
        "nan",
        "extern",
        "input",
        "__class__",
        "../../x",
        "a.b.c",
        "aten",
        "prims",
        "\x7f\x1b[0m",
    ),
    *(
        "a" * 199 + "é",
        "tenant:",
        "op:",
        "model:x@1",
        "toolchain:" + "z" * 250,
        "${x}",
        "%s%n",
        ";",
    ),
)
TARGETS = tuple(all_targets())
ATEN = tuple(sorted(DECOMPOSED))
PRIM_NAMES = tuple(sorted(PRIMS))
WORDS = (
    *("add", "sum", "amax", "argmax", "where", "convert", "softmax_sum", "welford_m2", "cumsum"),
    *(
        "floor",
        "trunc",
        "mean",
        "none",
        "reflect",
        "bilinear",
        "max",
        "sum",
        "gelu",
        "tanh",
        "amin",
    ),
    *("f32", "bf16", "driver", "torch", "binary", "so", "buffer", "size", "threads", "report"),
)
OPERATOR_FIELDS = frozenset({"op", "origin_ops"})
TARGET_FIELDS = frozenset({"target", "targets"})
DIGEST_LENGTHS = (0, 1, 16, 31, 32, 33, 64, 1000)

_SIGNED = {Field.CPPTYPE_INT32: 31, Field.CPPTYPE_INT64: 63}
_UNSIGNED = {Field.CPPTYPE_UINT32: 32, Field.CPPTYPE_UINT64: 64}


def hostile_value(field: Field, random: Random) -> Any:  # noqa: PLR0911  # one for each kind
    """A value that a scalar field can hold."""
    kind = field.cpp_type
    if kind in _SIGNED:
        end = 1 << _SIGNED[kind]
        return max(-end, min(_integer(random), end - 1))
    if kind in _UNSIGNED:
        return abs(_integer(random)) % (1 << _UNSIGNED[kind])
    if kind in (Field.CPPTYPE_DOUBLE, Field.CPPTYPE_FLOAT):
        return random.choice(REALS) if random.random() < 0.8 else random.uniform(-10, 10)
    if kind == Field.CPPTYPE_BOOL:
        return random.random() < 0.5
    if kind == Field.CPPTYPE_ENUM:
        known = len(field.enum_type.values)
        return random.choice((0, random.randrange(known), random.randrange(known), known, 99, -1))
    if field.type == Field.TYPE_BYTES:
        return random.randbytes(random.choice(DIGEST_LENGTHS))
    return hostile_text(field.name, random)


def hostile_text(field_name: str, random: Random) -> str:
    """A text: an existing operator or target, a word, or a name that breaks parsers."""
    if field_name in OPERATOR_FIELDS and random.random() < 0.75:
        return random.choice(random.choice((ATEN, PRIM_NAMES, WORDS)))
    if field_name in TARGET_FIELDS and random.random() < 0.6:
        return random.choice(TARGETS)
    return random.choice(NAMES if random.random() < 0.7 else WORDS)


def _integer(random: Random) -> int:
    if random.random() < 0.75:
        return random.choice(INTEGERS)
    return random.randint(-20, 20)
