"""Builds the template of attention's gradients for Hopper: its kernel for aligned buffers.

The launch of the text in `gluon_flash_gradients.py` makes tensor maps of queries, keys, values, the
gradients of results, and the gradients of queries, to which the kernel adds.
"""

from __future__ import annotations

from pathlib import Path

from codegen_svc.backends.cuda.gluon_template import (
    GluonTemplate,
    build_gluon,
    given_operand,
    made_operand,
    numbers_of,
)
from codegen_svc.backends.triton_user_kernel import TemplateBuild
from kernelfarm.ir.algebra.expr import ZERO, as_expr, ceil_div
from kernelfarm.ir.artifact import BuiltKernel

_TEXT = Path(__file__).with_name("gluon_flash_gradients.py")
_ENTRY = "flash_gradients"
_CONSTANTS = (
    *("HEADS", "SHARING", "OWN_HEADS", "WIDTH", "WIDTH_BLOCK"),
    *("SCALE", "IS_CAUSAL", "HAS_MASK"),
)
_QUERIES = 64
_KEYS = 128


def build_flash_gradients(build: TemplateBuild) -> BuiltKernel:
    """The variant of a kernel of `optimizer_svc.kernels.flash_gradients` for aligned buffers.

    Raises:
        KernelRejectedError: the toolchain refuses it, or it needs more than the chip has.
    """
    kernel = build.kernel
    numbers = numbers_of(kernel)
    heads, width, filled = (numbers[name] for name in ("HEADS", "WIDTH", "WIDTH_BLOCK"))
    sequences, keys = numbers["sequences"], numbers["key_count"]
    groups = as_expr(heads.as_int() // numbers["SHARING"].as_int())
    units = as_expr(heads.as_int() // numbers["OWN_HEADS"].as_int())
    stated: dict[str, object] = {name: kernel.constants[name] for name in _CONSTANTS}
    stated["HAS_MASK_ROWS"] = numbers["mask_row"] is not ZERO
    stated["HAS_TAIL"] = not keys.is_constant or keys.constant % _KEYS != 0
    own = (sequences, heads, numbers["length"], width)
    others = (sequences, groups, keys, width)
    template = GluonTemplate(
        text=_TEXT,
        entry=_ENTRY,
        constants=stated,
        maps=(
            given_operand("query", own, numbers, _QUERIES, filled.as_int()),
            given_operand("key", others, numbers, _KEYS, filled.as_int()),
            given_operand("value", others, numbers, _KEYS, filled.as_int()),
            given_operand("grad", own, numbers, _QUERIES, filled.as_int()),
            # Each group of warps adds half of a row.
            made_operand("grad_query", own, _QUERIES, filled.as_int() // 2),
        ),
        programs=ceil_div(keys, _KEYS) * sequences * units,
    )
    return build_gluon(build, template)
