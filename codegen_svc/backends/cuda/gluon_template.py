"""Builds kernels from texts in Gluon, Triton's language of layouts, for aligned buffers.

A text is a file that nothing imports. It gets the kernel's name, and values for its constants. The
launch makes tensor maps, all with axes (batch, heads, rows, width).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from codegen_svc.backends.triton_early_launch import PROGRAMMATIC_LAUNCH
from codegen_svc.backends.triton_tensor_map import tensor_map
from codegen_svc.backends.triton_toolchain import CompiledStages, CompileTarget, compile_triton
from codegen_svc.backends.triton_user_kernel import TemplateBuild, aligned_guard, aligned_pointers
from codegen_svc.emitters.triton.source import TritonSource
from codegen_svc.emitters.triton.user_module import TYPE_NAMES, type_name
from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError, KernelRejectedError
from kernelfarm.ir.algebra.expr import ZERO, Expr, as_expr, symbol
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts, StageText, TensorMapFacts
from kernelfarm.ir.triton.encode import print_user_kernel
from kernelfarm.ir.triton.user_kernel import FixedParam, Pointer, UserKernel
from kernelfarm.targets import GpuFacts

_CONSTANT = re.compile(r"^(\w+) = gl\.constexpr\(.*\)$", re.MULTILINE)
_DESCRIPTION = re.compile(r'\A""".*?"""\n+', re.DOTALL)
_STEPS = ("batch", "head", "row")
# The least step that a tensor map takes, for an axis of one element.
_UNIT_BYTES = 16
LONGEST_ROW_BYTES = 128
"""Shared memory is permuted in rows of up to this length, as multiplications want it."""
# Triton's kernels of Gluon state the warps of the first group only; the others are added.
_WARPS = 4


@dataclass(frozen=True, slots=True)
class MappedOperand:
    """A buffer that a tensor map describes, and the `rows` and `width` of what it copies at once.

    `steps` are those of batch, head and row, and `offset` where the operand begins, in elements.
    """

    name: str
    shape: tuple[Expr, Expr, Expr, Expr]
    steps: tuple[Expr, ...]
    offset: Expr
    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class GluonTemplate:
    """A text, its function, values of its constants, and what a launch needs.

    `maps` are in the order of the function's last parameters, which are called `NAME_map`.
    """

    text: Path
    entry: str
    constants: Mapping[str, object]
    maps: tuple[MappedOperand, ...]
    programs: Expr
    extras: tuple[tuple[str, str], ...] = ()


def numbers_of(kernel: UserKernel) -> dict[str, Expr]:
    """The integers of a launch by parameter: constants, or symbols of its sizes."""
    found = {scalar.name: symbol(f"s{number}") for number, scalar in enumerate(kernel.scalars)}
    constants = {n: as_expr(v) for n, v in kernel.constants.items() if isinstance(v, int)}
    return constants | found


def given_operand(
    name: str,
    shape: tuple[Expr, Expr, Expr, Expr],
    numbers: Mapping[str, Expr],
    rows: int,
    width: int,
) -> MappedOperand:
    """An operand whose offset and steps are numbers of the launch."""
    steps = tuple(numbers[f"{name}_{axis}"] for axis in _STEPS)
    return MappedOperand(name, shape, steps, numbers[f"{name}_at"], rows, width)


def made_operand(
    name: str, shape: tuple[Expr, Expr, Expr, Expr], rows: int, width: int
) -> MappedOperand:
    """A result (batch, rows, heads, width), row-major, with axes (batch, heads, rows, width)."""
    _, heads, length, columns = shape
    steps = (length * heads * columns, columns, heads * columns)
    return MappedOperand(name, shape, steps, ZERO, rows, width)


def build_gluon(build: TemplateBuild, template: GluonTemplate) -> BuiltKernel:
    """The kernel of a template for aligned buffers.

    Raises:
        KernelRejectedError: the toolchain refuses it, or it needs more than the chip has.
    """
    kernel, gpu = build.kernel, build.target.section(GpuFacts)
    source = _source(kernel, template)
    where = CompileTarget.of(gpu)
    options = {**build.toolchain.options, "num_warps": _WARPS}
    compiled = compile_triton(source, where, options, aligned_pointers(kernel))
    usage = build.toolchain.usage_of(kernel.name, compiled)
    if usage.shared_bytes > gpu.max_shared_bytes or compiled.facts.get("global_scratch_size"):
        raise KernelRejectedError(
            f"it needs {usage.shared_bytes} bytes of shared memory, and"
            f" {compiled.facts.get('global_scratch_size')} of scratch; expected at most"
            f" {gpu.max_shared_bytes}, and none"
        )
    maps = _maps(kernel, template, compiled)
    words = ["buffer" if isinstance(p, Pointer) else "size" for p in kernel.launched]
    words += [word for made in maps for word in made.arguments()]
    launch = LaunchFacts(
        symbol=kernel.name,
        grid=(template.programs,),
        num_warps=int(compiled.facts["num_warps"]),
        warp_size=gpu.warp_size,
        shared_bytes=usage.shared_bytes,
        registers=usage.registers,
        spills=usage.spills,
        arguments=(*words, "scratch", "scratch"),
        tensor_maps=maps,
        programmatic_launch=PROGRAMMATIC_LAUNCH in compiled.facts,
        extras=(("form", "template"), *template.extras),
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


def _source(kernel: UserKernel, template: GluonTemplate) -> TritonSource:
    """The text with the kernel's name and constants."""
    stated = dict(template.constants)

    def with_value(found: re.Match[str]) -> str:
        name = found[1]
        return f"{name} = gl.constexpr({stated.pop(name)!r})" if name in stated else found[0]

    text = _CONSTANT.sub(with_value, _DESCRIPTION.sub("", template.text.read_text()))
    if stated:
        raise InternalError(f"{template.text.name} has no {', '.join(stated)}")
    text = text.replace(f"def {template.entry}(", f"def {kernel.name}(")
    # Constants of the text have names in capitals.
    params = [param for param in kernel.params if not param.name.isupper()]
    signature = [(param.name, type_name(param)) for param in params]
    fixed = [(param.name, param.value) for param in params if isinstance(param, FixedParam)]
    types = {pointer.name: pointer.dtype for pointer in kernel.pointers}
    signature += [(f"{made.name}_map", _map_type(types[made.name], made)) for made in template.maps]
    return TritonSource(kernel.name, text, tuple(signature), tuple(fixed), (), is_gluon=True)


def _map_type(dtype: DType, copied: MappedOperand) -> str:
    """The type of a map that copies rows."""
    size = dtype.itemsize_bytes
    row_bytes = min(LONGEST_ROW_BYTES, copied.width * size)
    layout = (
        f"NVMMASharedLayout(swizzle_byte_width={row_bytes},"
        f" element_bitwidth={8 * size}, rank=4, transposed=False, fp4_padded=False, cga_layout=[])"
    )
    return f"tensordesc<{TYPE_NAMES[dtype]}[1,1,{copied.rows},{copied.width}],{layout}>"


def _maps(
    kernel: UserKernel, template: GluonTemplate, compiled: CompiledStages
) -> tuple[TensorMapFacts, ...]:
    """The maps in the order of the arguments."""
    pointers = {pointer.name: place for place, pointer in enumerate(kernel.pointers)}
    stated = compiled.facts.get("tensordesc_meta") or ()
    made = []
    for operand, copied in zip(template.maps, stated, strict=True):
        dtype = kernel.pointers[pointers[operand.name]].dtype
        size = dtype.itemsize_bytes
        steps = (step * size for step in operand.steps)
        # An axis of one element has no step, but a map wants one.
        strides = tuple(as_expr(_UNIT_BYTES) if step is ZERO else step for step in steps)
        place = (pointers[operand.name], dtype, operand.offset * size)
        made.append(tensor_map(place, operand.shape, strides, copied))
    return tuple(made)
