"""A loop kernel as readable Triton source: a pure function of the kernel and its tiling.

In the persistent form, a block [XBLOCK, RBLOCK] holds whole rows and the body is straight-line. In
the looped form, each level of reductions has a loop over the reduction points. A loop recomputes
the varying values that it needs, accumulates its level's reductions, and makes the stores that
depend on no later level. If a row is held in pieces, these loops are unrolled, and read registers
(`held_rows.py`). A kernel without reduction axes is straight-line over [XBLOCK]. If it is
divided into tiles, its last axes take the place of reduction axes, and a program has a part of
them: [XBLOCK, RBLOCK]. A product of matrices has tiles of results (`products.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen_svc.emitters.triton.block import Block, make_block
from codegen_svc.emitters.triton.float8 import check_float8_is_storage
from codegen_svc.emitters.triton.held_rows import held_body
from codegen_svc.emitters.triton.index import X_FLAT, numel
from codegen_svc.emitters.triton.math_functions import HELPERS, used_helpers
from codegen_svc.emitters.triton.names import checked_identifier, comment_text, pointer_type
from codegen_svc.emitters.triton.phases import Phase, plan_phases
from codegen_svc.emitters.triton.points import axis_lines, reduction_point_lines
from codegen_svc.emitters.triton.products import product_lines
from codegen_svc.emitters.triton.row_blocks import as_rows
from codegen_svc.emitters.triton.scalar import ScalarRules
from codegen_svc.emitters.triton.scan import carry_lines
from codegen_svc.emitters.triton.split_rows import in_gluon
from codegen_svc.emitters.triton.statements import reduction_text, scan_of, statement_lines
from codegen_svc.emitters.triton.tensor_maps import TensorMap
from codegen_svc.emitters.triton.tiling import EVEN_POINTS, Tiling
from codegen_svc.emitters.triton.two_passes import in_two_passes
from codegen_svc.emitters.triton.unused_lines import drop_unused_axes, drop_unused_values
from codegen_svc.emitters.triton.word_loads import once_each
from codegen_svc.precision.narrow_functions import narrow_functions, with_narrow_functions
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.loop_ir import (
    GUIDES,
    Access,
    Indirect,
    Kernel,
    Load,
    Reduce,
    Scan,
    Store,
    StoreMode,
    scattering_stores,
)
from kernelfarm.ir.triton.user_kernel import Value

_STEP = "    "


@dataclass(frozen=True, slots=True)
class TritonSource:
    """A module's text, with function name, argument types and block sizes for its compilation.

    `maps` are the tensor maps among the arguments, in order. `is_gluon`: the text is in Triton's
    language of layouts.
    """

    name: str
    text: str
    signature: tuple[tuple[str, str], ...]
    constexprs: tuple[tuple[str, Value], ...]
    notes: tuple[str, ...]
    maps: tuple[TensorMap, ...] = ()
    is_gluon: bool = False


def emit_triton(kernel: Kernel, tiling: Tiling, rules: ScalarRules) -> TritonSource:
    """The kernel's Triton module for a tiling.

    Raises:
        KernelRejectedError: the target cannot express an operation, type or name.
    """
    _check_names(kernel)
    if tiling.pieces:
        kernel = in_two_passes(kernel, keeps_moments=tiling.shared_pieces > 0)
    if rules.takes_narrow_functions:
        kernel = with_narrow_functions(kernel, has_flushing_exp=rules.takes_assembly)
    maps: tuple[TensorMap, ...] = ()
    if tiling.kblock:
        lines, dtypes, maps = product_lines(kernel, tiling, rules)
    else:
        rows = as_rows(kernel, tiling.tile_axes) if tiling.is_tile else kernel
        block = make_block(rows, tiling, rules)
        lines, dtypes = _block_lines(block), block.dtypes
    check_float8_is_storage(kernel, dtypes, rules.target)
    signature, constexprs = _signature(kernel, tiling, rules, maps)
    function = _function_lines(kernel, signature, lines)
    text = "\n".join(
        [*_header_lines(kernel, tiling, rules.target), *_helper_lines(function), *function]
    )
    if is_gluon := tiling.shared_pieces > 0:
        text = in_gluon(text)
    notes = _notes(kernel)
    return TritonSource(kernel.name, text + "\n", signature, constexprs, notes, maps, is_gluon)


def _block_lines(block: Block) -> list[str]:
    """The body of a function that is no product."""
    points = _point_lines(block)
    looped = bool(block.kernel.reduction) and not (
        block.tiling.is_persistent or block.tiling.is_tile
    )
    if block.tiling.pieces:
        body = held_body(block)
    else:
        body = _looped_body(block) if looped else _straight_body(block)
    return [*_size_lines(block), *_sub_blocked(block, drop_unused_axes([*points, *body]))]


def _check_names(kernel: Kernel) -> None:
    checked_identifier(kernel.name, "the kernel")
    for param in kernel.params:
        checked_identifier(param.name, "a parameter")
    known = {param.name for param in kernel.params}
    for statement in kernel.body:
        if isinstance(statement, Load | Store) and statement.param not in known:
            raise KernelRejectedError(
                f"{kernel.name} accesses {statement.param!r}; expected one of its parameters"
            )
    for axis in (*kernel.outer, *kernel.reduction):
        checked_identifier(axis.name, "an axis")
    for size in kernel.sizes:
        checked_identifier(size.name, "a size")


def _signature(
    kernel: Kernel, tiling: Tiling, rules: ScalarRules, maps: tuple[TensorMap, ...]
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, int], ...]]:
    constexprs = [("XBLOCK", tiling.xblock)]
    if tiling.xsub != tiling.xblock:
        constexprs.append(("XBLOCK_SUB", tiling.xsub))
    if kernel.reduction or tiling.is_tile:
        constexprs.append(("RBLOCK", tiling.rblock))
    if tiling.kblock:
        constexprs.append(("KBLOCK", tiling.kblock))
    if tiling.programs:
        constexprs.append(("PROGRAMS", tiling.programs))
    signature = [(f"{p.name}_ptr", pointer_type(p.dtype, rules.target)) for p in kernel.params]
    signature += [(size.name, "i64") for size in kernel.sizes]
    signature += [(m.name, _map_type(m, signature, dict(constexprs))) for m in maps]
    signature += [(name, "constexpr") for name, _ in constexprs]
    return tuple(signature), tuple(constexprs)


def _map_type(made: TensorMap, signature: list[tuple[str, str]], sizes: dict[str, int]) -> str:
    """The type of a tensor map that copies blocks of some sizes, as Triton names it."""
    element = dict(signature)[f"{made.param}_ptr"].removeprefix("*")
    shape = ",".join(map(str, made.block_shape(sizes)))
    return f"tensordesc<{element}[{shape}]>"


def _header_lines(kernel: Kernel, tiling: Tiling, target: str) -> list[str]:
    form = "tile" if tiling.is_tile else "pointwise"
    if kernel.reduction:
        form = "persistent reduction" if tiling.is_persistent else "looped reduction"
        form = _held_form(tiling) if tiling.pieces else form
        form = "product in tiles" if tiling.kblock else form
    axes = ", ".join(f"{a.name} < {a.extent}" for a in kernel.outer) or "one point"
    lines = [f"# {kernel.name} for {target}: {form}", f"# over {axes}"]
    if kernel.reduction:
        lines.append("# reducing " + ", ".join(f"{a.name} < {a.extent}" for a in kernel.reduction))
    if narrow := _narrow_note(kernel):
        lines.append(f"# {narrow}")
    words = {Access.READ: "read", Access.WRITE: "written", Access.READ_WRITE: "read and written"}
    lines += [
        f"# {p.name}: {p.dtype.value}, {p.size_elems} elements, {words[p.access]}"
        for p in kernel.params
    ]
    return [*lines, "import triton", "import triton.language as tl", ""]


def _held_form(tiling: Tiling) -> str:
    by = f" by clusters of {tiling.blocks} blocks" if tiling.blocks > 1 else ""
    where = f", {tiling.shared_pieces} in shared memory" if tiling.shared_pieces else ""
    return f"reduction of rows held in {tiling.pieces} pieces{where}{by}"


def _helper_lines(function: list[str]) -> list[str]:
    lines: list[str] = []
    for name in used_helpers("\n".join(function)):
        lines += ["", "@triton.jit", *HELPERS[name].strip().splitlines(), ""]
    return lines


def _function_lines(
    kernel: Kernel, signature: tuple[tuple[str, str], ...], body: list[str]
) -> list[str]:
    arguments = [
        f"{name}: tl.constexpr" if kind == "constexpr" else name for name, kind in signature
    ]
    comments = [f"# {comment_text(comment)}" for comment in kernel.comments]
    head = ["", "@triton.jit", f"def {kernel.name}(", *[f"{_STEP}{a}," for a in arguments], "):"]
    return head + [_STEP + line for line in (*comments, *body)]


def _size_lines(block: Block) -> list[str]:
    """Lines for sizes in the index type, the number of points, and the program's first point."""
    kernel, is_wide = block.kernel, block.tiling.index_bits == 64
    lines = [] if is_wide else [f"{s.name} = {s.name}.to(tl.int32)" for s in kernel.sizes]
    if block.x_mask:
        points = block.writer.raw_text(numel(kernel.outer))
        if block.tiling.has_even_points:
            points = f"tl.multiple_of({points}, {EVEN_POINTS})"
        lines.append(f"xnumel = {points}")
    if kernel.reduction and (block.r_mask or not block.tiling.is_persistent):
        lines.append(f"rnumel = {block.writer.raw_text(numel(kernel.reduction))}")
    program = "tl.program_id(0).to(tl.int64)" if is_wide else "tl.program_id(0)"
    if not block.tiling.is_tile:
        return [*lines, f"xoffset = {program} * XBLOCK"]
    return [
        *lines,
        "rblocks = (rnumel + RBLOCK - 1) // RBLOCK",
        f"xoffset = {program} // rblocks * XBLOCK",
        f"roffset = {program} % rblocks * RBLOCK",
    ]


def _sub_blocked(block: Block, lines: list[str]) -> list[str]:
    if block.x_size == "XBLOCK":
        return lines
    return ["for xsub in range(0, XBLOCK, XBLOCK_SUB):", *[_STEP + line for line in lines]]


def _point_lines(block: Block) -> list[str]:
    """Lines for `xindex` with its mask and axes; also for `rindex` if no loop runs over it."""
    column = "[:, None]" if block.rank == 2 else ""
    offset = "xoffset + xsub" if block.x_size == "XBLOCK_SUB" else "xoffset"
    lines = [f"xindex = {offset} + tl.arange(0, {block.x_size}){column}"]
    if block.x_mask:
        lines.append("xmask = xindex < xnumel")
    lines += axis_lines(block, X_FLAT)
    if block.tiling.is_persistent or block.tiling.is_tile:
        offset = "roffset + " if block.tiling.is_tile else ""
        lines.append(f"rindex = {offset}tl.arange(0, RBLOCK)[None, :]")
        lines += reduction_point_lines(block)
    return lines


def _straight_body(block: Block) -> list[str]:
    lines: list[str] = []
    for number, statement in enumerate(block.kernel.body):
        if isinstance(statement, Reduce):
            lines += reduction_text(block, number).persistent
        else:
            lines += statement_lines(block, number)
    return drop_unused_values(block, once_each(lines))


def _looped_body(block: Block) -> list[str]:
    lines: list[str] = []
    phases = plan_phases(block.kernel)
    for at, phase in enumerate(phases):
        for number in phase.before:
            lines += statement_lines(block, number)
        if phase.within or phase.reduces:
            lines += _loop_lines(block, phase, _evictions(block, phases, at))
    return drop_unused_values(block, lines)


def _evictions(block: Block, phases: tuple[Phase, ...], at: int) -> dict[int, str]:
    """The policies of a loop's loads of rows that several loops read.

    A cache should keep such a row until the last loop has read it.
    """
    if not block.rules.takes_eviction_policies:
        return {}
    earlier = {number for phase in phases[:at] for number in phase.within}
    later = {number for phase in phases[at + 1 :] for number in phase.within}
    return {
        number: "evict_last" if number in later else "evict_first"
        for number in phases[at].within
        if number in earlier | later
        and number in block.across_x
        and number in block.varying
        and isinstance(block.kernel.body[number], Load)
    }


def _loop_lines(block: Block, phase: Phase, evictions: dict[int, str]) -> list[str]:
    texts = [reduction_text(block, number) for number in _guided_first(block, phase.reduces)]
    lines = [line for text in texts for line in text.initial]
    for number in phase.within:
        if isinstance(block.kernel.body[number], Scan):
            lines += carry_lines(scan_of(block, number))
    inner = ["rindex = roffset + tl.arange(0, RBLOCK)[None, :]", *reduction_point_lines(block)]
    if _reads_again(block, phase, evictions):
        # Backwards: the cache still has the end of the row.
        lines.append(f"for rdone in {_row_range(block)}:")
        inner.insert(0, "roffset = (rnumel - 1) // RBLOCK * RBLOCK - rdone")
    else:
        lines.append(f"for roffset in {_row_range(block)}:")
    for number in phase.within:
        inner += statement_lines(block, number, evictions.get(number, ""))
    inner = once_each(inner)
    for text in texts:
        inner += text.step
    lines += [_STEP + line for line in drop_unused_axes(inner)]
    return lines + [line for text in reversed(texts) for line in text.final]


def _row_range(block: Block) -> str:
    """The iterations of a loop over a row; Triton pipelines loads without a product if asked to."""
    stages = block.tiling.loop_stages
    if not stages:
        return "range(0, rnumel, RBLOCK)"
    return f"tl.range(0, rnumel, RBLOCK, num_stages={stages})"


def _reads_again(block: Block, phase: Phase, evictions: dict[int, str]) -> bool:
    """True if a loop reads rows for the last time, and may do so in any order."""
    is_ordered = phase.reduces or any(
        isinstance(block.kernel.body[number], Scan) for number in phase.within
    )
    return not is_ordered and "evict_first" in evictions.values()


def _guided_first(block: Block, reduces: tuple[int, ...]) -> list[int]:
    """Guided reductions before their guides, because a step needs the guide's earlier value."""
    ops = {n: s.op for n in reduces if isinstance(s := block.kernel.body[n], Reduce)}
    return sorted(reduces, key=lambda n: ops[n] not in GUIDES)


def _narrow_note(kernel: Kernel) -> str:
    """Which functions are less precise than f32; empty if none is."""
    functions = ", ".join(narrow_functions(kernel))
    return f"at the precision of f16 and bf16 results: {functions}" if functions else ""


def _notes(kernel: Kernel) -> tuple[str, ...]:
    notes = []
    if narrow := _narrow_note(kernel):
        notes.append(narrow)
    stores = [s for n in scattering_stores(kernel) if isinstance(s := kernel.body[n], Store)]
    if any(s.mode is StoreMode.SET for s in stores):
        notes.append("of several updates of one element any may be the last")
    if any(s.mode is StoreMode.ADD and kernel.param(s.param).dtype.is_float for s in stores):
        notes.append("sums of updates differ in their last bits from run to run")
    if any(isinstance(s, Indirect) for s in kernel.body):
        notes.append("out-of-range indices are clamped: accelerators do not report them")
    return tuple(notes)
