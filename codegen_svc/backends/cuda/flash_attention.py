"""Builds the template of flash attention for Hopper: the variant of its kernel for aligned buffers.

The text in `gluon_flash_attention.py` gets the kernel's constants. The launch makes tensor maps of
queries, keys, values and results, all with axes (batch, heads, rows, width).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from codegen_svc.backends.triton_tensor_map import tensor_map
from codegen_svc.backends.triton_toolchain import CompiledStages, CompileTarget, compile_triton
from codegen_svc.backends.triton_user_kernel import (
    TemplateBuild,
    aligned_guard,
    aligned_pointers,
)
from codegen_svc.emitters.triton.source import TritonSource
from codegen_svc.emitters.triton.user_module import TYPE_NAMES, type_name
from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError, KernelRejectedError
from kernelfarm.ir.algebra.expr import ZERO, Expr, as_expr, ceil_div, minimum, symbol
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts, StageText, TensorMapFacts
from kernelfarm.ir.triton.encode import print_user_kernel
from kernelfarm.ir.triton.user_kernel import FixedParam, Pointer, UserKernel
from kernelfarm.targets import GpuFacts

_TEXT = Path(__file__).with_name("gluon_flash_attention.py")
_ENTRY = "flash_attention"
_CONSTANT = re.compile(r"^(\w+) = gl\.constexpr\(.*\)$", re.MULTILINE)
_DESCRIPTION = re.compile(r'\A""".*?"""\n+', re.DOTALL)
_CONSTANTS = ("HEADS", "SHARING", "WIDTH_BLOCK", "SCALE", "IS_CAUSAL", "HAS_MASK", "HAS_SUMS")
_OPERANDS = ("query", "key", "value", "out")
_STEPS = ("batch", "head", "row")
_ROWS = 64
# Heads that leave registers for a third group.
_NARROW_WIDTH = 64
_BLOCK = 128
_STAGES = 2
# The least step that a tensor map takes, for an axis of one element.
_UNIT_BYTES = 16
# Keys and values of heads that come together take about two thirds of the second-level cache.
_SPAN_BYTES = 32 << 20
# With more tiles than this for each program, causal tiles get a program each: they end at different
# times, and the chip starts the next one where one ends. Compared on an H200.
_MOST_ROUNDS = 8
# A third group computes more queries by a block, unless it adds more rows behind the last query.
_MOST_WASTE = 1.15
# The keys of a head, if they vary.
_LIKELY_KEYS = 2048
# Triton's kernels of Gluon state the warps of the first group only; the others are added.
_WARPS = 4


@dataclass(frozen=True, slots=True)
class _Form:
    """How many groups compute, with how many registers a thread, in how many programs."""

    groups: int
    registers: int
    takes_turns: bool
    programs: Expr
    span: int


def build_flash_attention(build: TemplateBuild) -> BuiltKernel:
    """The variant of a kernel of `optimizer_svc.kernels.flash_attention` for aligned buffers.

    Raises:
        KernelRejectedError: the toolchain refuses it, or it needs more than the chip has.
    """
    kernel, gpu = build.kernel, build.target.section(GpuFacts)
    numbers = _numbers(kernel)
    form = _form(kernel, numbers, gpu.multiprocessors or 1)
    source = _source(kernel, form, numbers)
    where = CompileTarget(gpu.triton_backend, gpu.triton_arch, gpu.warp_size)
    options = {**build.toolchain.options, "num_warps": _WARPS}
    compiled = compile_triton(source, where, options, aligned_pointers(kernel))
    usage = build.toolchain.usage_of(kernel.name, compiled)
    if usage.shared_bytes > gpu.max_shared_bytes or compiled.facts.get("global_scratch_size"):
        raise KernelRejectedError(
            f"it needs {usage.shared_bytes} bytes of shared memory, and"
            f" {compiled.facts.get('global_scratch_size')} of scratch; expected at most"
            f" {gpu.max_shared_bytes}, and none"
        )
    maps = _maps(kernel, numbers, compiled)
    words = ["buffer" if isinstance(p, Pointer) else "size" for p in kernel.launched]
    words += [word for made in maps for word in made.arguments()]
    launch = LaunchFacts(
        symbol=kernel.name,
        grid=(form.programs,),
        num_warps=int(compiled.facts["num_warps"]),
        warp_size=gpu.warp_size,
        shared_bytes=usage.shared_bytes,
        registers=usage.registers,
        spills=usage.spills,
        arguments=(*words, "scratch", "scratch"),
        tensor_maps=maps,
        extras=(("form", "template"), ("groups", str(form.groups))),
    )
    spilled = f"{usage.spills} bytes of registers per thread are spilled"
    return BuiltKernel(
        binary_stage=build.toolchain.binary_stage,
        stages=(
            StageText("user_kernel", print_user_kernel(kernel).encode(), True),
            StageText("gluon", source.text.encode(), True),
            *compiled.stage_texts(),
        ),
        launch=launch,
        guard=aligned_guard(kernel),
        notes=(spilled,) if usage.spills else (),
    )


def _numbers(kernel: UserKernel) -> dict[str, Expr]:
    """The integers of a launch by parameter: constants, or symbols of its sizes."""
    found = {scalar.name: symbol(f"s{number}") for number, scalar in enumerate(kernel.scalars)}
    constants = {n: as_expr(v) for n, v in kernel.constants.items() if isinstance(v, int)}
    return constants | found


def _form(kernel: UserKernel, numbers: dict[str, Expr], multiprocessors: int) -> _Form:
    """What was fastest on an H200, by the width of a head and whether keys are hidden."""
    length, width = numbers["length"], numbers["WIDTH_BLOCK"].as_int()
    is_causal = kernel.constants["IS_CAUSAL"] is True
    groups = 2
    # A third group leaves registers for heads of 64 elements, but not for causal scores and masks.
    if (
        width <= _NARROW_WIDTH
        and not is_causal
        and numbers["mask_row"] is ZERO
        and length.is_constant
    ):
        rows = {g: -(-length.constant // (g * _ROWS)) * g * _ROWS for g in (2, 3)}
        groups = 3 if rows[3] <= rows[2] * _MOST_WASTE else 2
    heads = numbers["HEADS"].as_int()
    tiles = ceil_div(length, groups * _ROWS) * numbers["sequences"] * heads
    many = _MOST_ROUNDS * multiprocessors
    has_many = is_causal and tiles.is_constant and tiles.constant > many
    keys = numbers["key_count"].constant if numbers["key_count"].is_constant else _LIKELY_KEYS
    own_bytes = 2 * keys * width * DType.BF16.itemsize_bytes
    # Programs that run at a time take no more heads than there are of them.
    most = min(heads, multiprocessors, _SPAN_BYTES * numbers["SHARING"].as_int() // own_bytes)
    return _Form(
        groups=groups,
        registers=160 if groups == 3 else 240,
        takes_turns=groups == 3 or is_causal,
        programs=tiles if has_many else minimum(tiles, multiprocessors),
        span=max(span for span in range(1, max(1, most) + 1) if heads % span == 0),
    )


def _source(kernel: UserKernel, form: _Form, numbers: dict[str, Expr]) -> TritonSource:
    """The text with the kernel's name and constants."""
    values, keys = kernel.constants, numbers["key_count"]
    stated = {name: values[name] for name in _CONSTANTS}
    stated["HAS_MASK_ROWS"] = numbers["mask_row"] is not ZERO
    stated["HAS_TAIL"] = not keys.is_constant or keys.constant % _BLOCK != 0
    stated |= {"GROUPS": form.groups, "BLOCK": _BLOCK, "STAGES": _STAGES, "SPAN": form.span}
    stated |= {"REGISTERS": form.registers, "TAKES_TURNS": form.takes_turns}

    def with_value(found: re.Match[str]) -> str:
        name = found[1]
        return f"{name} = gl.constexpr({stated.pop(name)!r})" if name in stated else found[0]

    text = _CONSTANT.sub(with_value, _DESCRIPTION.sub("", _TEXT.read_text()))
    if stated:
        raise InternalError(f"the text of flash attention has no {', '.join(stated)}")
    text = text.replace(f"def {_ENTRY}(", f"def {kernel.name}(")
    dtype = kernel.pointers[0].dtype
    width = numbers["WIDTH_BLOCK"].as_int()
    # Constants of the text have names in capitals.
    params = [param for param in kernel.params if not param.name.isupper()]
    signature = [(param.name, type_name(param)) for param in params]
    fixed = [(param.name, param.value) for param in params if isinstance(param, FixedParam)]
    sides = {name: _ROWS if name in ("query", "out") else _BLOCK for name in _OPERANDS}
    signature += [(f"{name}_map", _map_type(dtype, sides[name], width)) for name in _OPERANDS]
    return TritonSource(kernel.name, text, tuple(signature), tuple(fixed), (), is_gluon=True)


def _map_type(dtype: DType, rows: int, width: int) -> str:
    """The type of a map that copies rows, permuted as multiplications want it."""
    size = dtype.itemsize_bytes
    layout = (
        f"NVMMASharedLayout(swizzle_byte_width={min(128, width * size)},"
        f" element_bitwidth={8 * size}, rank=4, transposed=False, fp4_padded=False, cga_layout=[])"
    )
    return f"tensordesc<{TYPE_NAMES[dtype]}[1,1,{rows},{width}],{layout}>"


def _maps(
    kernel: UserKernel, numbers: dict[str, Expr], compiled: CompiledStages
) -> tuple[TensorMapFacts, ...]:
    """The maps of the operands and of the result, in the order of the arguments."""
    heads, width = numbers["HEADS"], numbers["WIDTH"]
    shared = as_expr(heads.as_int() // numbers["SHARING"].as_int())
    own = (numbers["sequences"], heads, numbers["length"], width)
    others = (numbers["sequences"], shared, numbers["key_count"], width)
    shapes = {"query": own, "key": others, "value": others, "out": own}
    numbers = numbers | {
        "out_at": ZERO,
        "out_batch": numbers["length"] * heads * width,
        "out_head": width,
        "out_row": heads * width,
    }
    pointers = {pointer.name: place for place, pointer in enumerate(kernel.pointers)}
    stated = compiled.facts.get("tensordesc_meta") or ()
    made = []
    for name, copied in zip(_OPERANDS, stated, strict=True):
        dtype = kernel.pointers[pointers[name]].dtype
        size = dtype.itemsize_bytes
        steps = (numbers[f"{name}_{axis}"] * size for axis in _STEPS)
        # An axis of one element has no step, but a map wants one.
        strides = tuple(as_expr(_UNIT_BYTES) if step is ZERO else step for step in steps)
        place = (pointers[name], dtype, numbers[f"{name}_at"] * size)
        made.append(tensor_map(place, shapes[name], strides, copied))
    return tuple(made)
