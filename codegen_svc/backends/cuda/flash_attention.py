"""Builds the template of flash attention for Hopper: the variant of its kernel for aligned buffers.

The text in `gluon_flash_attention.py` gets the kernel's constants. The launch makes tensor maps of
queries, keys, values and results, all with axes (batch, heads, rows, width).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from codegen_svc.backends.triton_gpu import tensor_map
from codegen_svc.backends.triton_toolchain import CompiledStages, CompileTarget, compile_triton
from codegen_svc.backends.triton_user_kernel import TemplateBuild, aligned_guard
from codegen_svc.emitters.triton.source import TritonSource
from codegen_svc.emitters.triton.user_module import TYPE_NAMES
from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError, KernelRejectedError
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts, StageText, TensorMapFacts
from kernelfarm.ir.triton.encode import print_user_kernel
from kernelfarm.ir.triton.user_kernel import Pointer, UserKernel, Value
from kernelfarm.targets import GpuFacts

_TEXT = Path(__file__).with_name("gluon_flash_attention.py")
_ENTRY = "flash_attention"
_CONSTANT = re.compile(r"^(\w+) = gl\.constexpr\(.*\)$", re.MULTILINE)
_DESCRIPTION = re.compile(r'\A""".*?"""\n+', re.DOTALL)
_OPERANDS = ("query", "key", "value", "out")
_STEPS = ("batch", "head", "row")
_ROWS = 64
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
# Triton's kernels of Gluon state the warps of the first group only; the others are added.
_WARPS = 4


@dataclass(frozen=True, slots=True)
class _Form:
    """How many groups compute, with how many registers a thread, in how many programs."""

    groups: int
    registers: int
    takes_turns: bool
    programs: int
    span: int


def build_flash_attention(build: TemplateBuild) -> BuiltKernel:
    """The variant of a kernel of `optimizer_svc.kernels.flash_attention` for aligned buffers.

    Raises:
        KernelRejectedError: the toolchain refuses it, or it needs memory that no launch provides.
    """
    kernel, gpu = build.kernel, build.target.section(GpuFacts)
    values = kernel.constants
    form = _form(values, gpu.multiprocessors or 1)
    source = _source(kernel, form)
    where = CompileTarget(gpu.triton_backend, gpu.triton_arch, gpu.warp_size)
    assumptions = {pointer.name: (("tt.divisibility", 16),) for pointer in kernel.pointers}
    options = {**build.toolchain.options, "num_warps": _WARPS}
    compiled = compile_triton(source, where, options, assumptions)
    if compiled.facts.get("global_scratch_size"):
        raise KernelRejectedError(f"template {kernel.entry} needs scratch memory")
    usage = build.toolchain.usage_of(kernel.name, compiled)
    maps = _maps(kernel, compiled)
    buffers = ("buffer",) * len(kernel.pointers)
    words = (word for made in maps for word in made.arguments())
    launch = LaunchFacts(
        symbol=kernel.name,
        grid=(as_expr(form.programs),),
        num_warps=int(compiled.facts["num_warps"]),
        warp_size=gpu.warp_size,
        shared_bytes=usage.shared_bytes,
        registers=usage.registers,
        spills=usage.spills,
        arguments=(*buffers, *words, "scratch", "scratch"),
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


def _form(values: dict[str, Value], multiprocessors: int) -> _Form:
    """What was fastest on an H200, by the width of a head and whether keys are hidden."""
    queries, width = _number(values, "QUERIES"), _number(values, "WIDTH")
    heads = _number(values, "BATCH") * _number(values, "HEADS")
    is_causal = values["IS_CAUSAL"] is True
    has_plain_rows = _number(values, "mask_row") == 0
    rows = {groups: -(-queries // (groups * _ROWS)) * groups * _ROWS for groups in (2, 3)}
    # A third group leaves registers for heads of 64 elements and scores of 128 keys, not for more.
    is_wide = not is_causal and has_plain_rows and rows[3] <= rows[2] * _MOST_WASTE
    groups = 3 if width == _ROWS and is_wide else 2
    tiles = heads * rows[groups] // (groups * _ROWS)
    has_many = is_causal and tiles > _MOST_ROUNDS * multiprocessors
    own_bytes = 2 * _number(values, "KEYS") * width * DType.BF16.itemsize_bytes
    most = max(1, _SPAN_BYTES * _number(values, "SHARING") // own_bytes)
    return _Form(
        groups=groups,
        registers=160 if groups == 3 else 240,
        takes_turns=groups == 3 or is_causal,
        programs=tiles if has_many else min(tiles, multiprocessors),
        span=max(span for span in range(1, min(most, heads) + 1) if heads % span == 0),
    )


def _source(kernel: UserKernel, form: _Form) -> TritonSource:
    """The text with the kernel's name and constants."""
    values = kernel.constants
    names = ("BATCH", "HEADS", "SHARING", "QUERIES", "KEYS", "WIDTH", "SCALE", "IS_CAUSAL")
    stated = {name: values[name] for name in (*names, "HAS_MASK")}
    stated |= {f"MASK_{step.upper()}": values[f"mask_{step}"] for step in ("at", *_STEPS)}
    stated |= {"GROUPS": form.groups, "BLOCK": _BLOCK, "STAGES": _STAGES, "SPAN": form.span}
    stated |= {"REGISTERS": form.registers, "TAKES_TURNS": form.takes_turns}

    def with_value(found: re.Match[str]) -> str:
        name = found[1]
        return f"{name} = gl.constexpr({stated.pop(name)!r})" if name in stated else found[0]

    text = _CONSTANT.sub(with_value, _DESCRIPTION.sub("", _TEXT.read_text()))
    if stated:
        raise InternalError(f"the text of flash attention has no {', '.join(stated)}")
    text = text.replace(f"def {_ENTRY}(", f"def {kernel.name}(")
    (dtype,) = {pointer.dtype for pointer in kernel.pointers}
    width = _number(values, "WIDTH")
    sides = {name: _ROWS if name in ("query", "out") else _BLOCK for name in _OPERANDS}
    pointers = {pointer.name for pointer in kernel.pointers}
    signature = [
        (name, f"*{TYPE_NAMES[dtype]}" if name in pointers else "constexpr")
        for name in ("query", "key", "value", "mask", "out")
    ]
    signature += [(f"{name}_map", _map_type(dtype, sides[name], width)) for name in _OPERANDS]
    fixed = tuple((name, None) for name, kind in signature if kind == "constexpr")
    return TritonSource(kernel.name, text, tuple(signature), fixed, (), is_gluon=True)


def _map_type(dtype: DType, rows: int, width: int) -> str:
    """The type of a map that copies rows, permuted over 128 bytes as multiplications want it."""
    layout = (
        f"NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth={8 * dtype.itemsize_bytes},"
        " rank=4, transposed=False, fp4_padded=False, cga_layout=[])"
    )
    return f"tensordesc<{TYPE_NAMES[dtype]}[1,1,{rows},{width}],{layout}>"


def _maps(kernel: UserKernel, compiled: CompiledStages) -> tuple[TensorMapFacts, ...]:
    """The maps of the operands and of the result, in the order of the arguments."""
    values = kernel.constants
    numbers = {pointer.name: number for number, pointer in enumerate(kernel.pointers)}
    batch, queries = _number(values, "BATCH"), _number(values, "QUERIES")
    heads, keys = _number(values, "HEADS"), _number(values, "KEYS")
    width = _number(values, "WIDTH")
    shared = (batch, heads // _number(values, "SHARING"), keys, width)
    shapes = {"query": (batch, heads, queries, width), "key": shared, "value": shared}
    shapes["out"] = shapes["query"]
    steps = {
        name: tuple(_number(values, f"{name}_{axis}") for axis in _STEPS)
        for name in ("query", "key", "value")
    }
    steps["out"] = (queries * heads * width, width, heads * width)
    stated = compiled.facts.get("tensordesc_meta") or ()
    made = []
    for name, copied in zip(_OPERANDS, stated, strict=True):
        pointer: Pointer = kernel.pointers[numbers[name]]
        size = pointer.dtype.itemsize_bytes
        offset = 0 if name == "out" else _number(values, f"{name}_at")
        strides = tuple(max(step * size, _UNIT_BYTES) for step in steps[name])
        place = (numbers[name], pointer.dtype, offset * size)
        made.append(tensor_map(place, shapes[name], strides, copied))
    return tuple(made)


def _number(values: dict[str, Value], name: str) -> int:
    value = values[name]
    if not isinstance(value, int):
        raise InternalError(f"flash attention: {name} is {value!r}; expected an integer")
    return value
