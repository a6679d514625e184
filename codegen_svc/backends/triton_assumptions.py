"""The assumptions of a GPU kernel's variants, and the guards that check them.

A kernel is compiled ahead of time, so Triton sees no arguments and specializes nothing by itself. A
variant assumes alignment (for vector loads), 32-bit positions, or sizes divisible by 16. An
assumption that the kernel's own extents do not prove becomes a guard that the launcher checks.

Pointwise kernels of consecutive points assume that the number of points is divisible by 16, which
is the length of a buffer that they store. If they have several axes, variants before it have their
points in groups of 16 neighbours or over rows, and assume what that needs of sizes
(`grouped_points.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen_svc.emitters.triton.grouped_points import VaryingForm, in_groups, over_rows
from codegen_svc.emitters.triton.index import kernel_bounds, numel
from codegen_svc.emitters.triton.row_blocks import is_multiple
from codegen_svc.emitters.triton.tiling import EVEN_POINTS, INDEX_LIMIT, needs_64_bit_indices
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.artifact import GuardAtom, GuardOp, GuardSubject
from kernelfarm.ir.loop_ir import Access, Indirect, Kernel, index_of, scattering_stores
from kernelfarm.targets import MemoryFacts
from kernelfarm.traffic import BlockForm, choose_block, reads_columns

ALIGNMENT_BYTES = 16
DIVISIBLE = ("tt.divisibility", ALIGNMENT_BYTES)
_SMALL_BUFFER = ("tt.pointer_range", 32)
_BUFFER_LIMIT_BYTES = 1 << 31
# The hidden sizes and attention rows of common models. Rows that a chip cannot hold are looped
# over, which takes 1.1 to 1.5 times as long on an H200.
_WIDTH_CLASSES = (512, 1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144)

Assumptions = Mapping[str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, slots=True)
class VariantPlan:
    """One variant to compile: assumptions by argument, index width, and the guard they need.

    `width_limit`: the most points of a reduction of varying extent; None without that assumption.
    `has_even_points`: the number of points is divisible by 16. `form`: what is emitted instead of
    the kernel.
    """

    assumptions: Assumptions
    index_bits: int
    guard: tuple[GuardAtom, ...]
    width_limit: int | None = None
    has_even_points: bool = False
    form: VaryingForm | None = None

    def even_sizes(self, kernel: Kernel) -> frozenset[str] | None:
        """The sizes that are multiples of 16; None if buffers may begin anywhere."""
        even = {name for name, facts in self.assumptions.items() if DIVISIBLE in facts}
        if not even.issuperset(f"{param.name}_ptr" for param in kernel.params):
            return None
        return frozenset(even.intersection(size.name for size in kernel.sizes))


def plan_variants(
    kernel: Kernel, memory: MemoryFacts, uses_pointer_range: bool
) -> tuple[VariantPlan, ...]:
    """The variants of a kernel, most specific first; the last needs no guard."""
    wide = needs_64_bit_indices(kernel)
    general = VariantPlan(
        _pointer_assumptions(kernel, False, uses_pointer_range), 64 if wide else 32, ()
    )
    can_narrow = wide and _can_be_narrow(kernel)
    aligned = VariantPlan(
        _pointer_assumptions(kernel, True, uses_pointer_range, assumed_small=can_narrow),
        32 if can_narrow or not wide else 64,
        (
            *_alignment_guard(kernel),
            *(_narrow_guard(kernel, uses_pointer_range) if can_narrow else ()),
        ),
    )
    strided = _stride_symbols(kernel)
    consecutive = _of_consecutive_points(kernel, memory, aligned)
    if consecutive and consecutive[0].guard == aligned.guard:
        return consecutive[0], general
    if consecutive or not strided:
        return *consecutive, aligned, general
    even = VariantPlan(
        {**aligned.assumptions, **{name: (DIVISIBLE,) for name in strided}},
        aligned.index_bits,
        (
            *aligned.guard,
            *(GuardAtom(GuardSubject.SYMBOL, n, GuardOp.DIVISIBLE, 16) for n in strided),
        ),
    )
    return *_width_classes(kernel, memory, even), even, aligned, general


def _of_consecutive_points(
    kernel: Kernel, memory: MemoryFacts, base: VariantPlan
) -> list[VariantPlan]:
    """Variants of a pointwise kernel whose programs have consecutive points of varying number."""
    points = numel(kernel.outer)
    if kernel.reduction or points.is_constant or _follows_data(kernel):
        return []
    if choose_block(kernel, memory).form is not BlockForm.FLAT:
        return []
    number = _stored_at_each_point(kernel)
    is_even = is_multiple(points, EVEN_POINTS)
    even = () if number is None or is_even else (_divisible_extent(number, EVEN_POINTS),)
    forms = [form for form in (in_groups(kernel), over_rows(kernel) if even else None) if form]
    if not forms and (len(kernel.outer) > 1 or _stride_symbols(kernel)):
        return []
    found = []
    for form in forms:
        # Launchers prefer more conditions. So groups have as many as rows, and come first.
        also = even if len(form.divisors) < len(forms[-1].divisors) else ()
        guard = (*base.guard, *(_divisible_size(n, d) for n, d in form.divisors), *also)
        found.append(replace(base, guard=guard, form=form))
    if even:
        found.append(replace(base, guard=(*base.guard, *even), has_even_points=True))
    return found


def _divisible_size(name: str, divisor: int) -> GuardAtom:
    return GuardAtom(GuardSubject.SYMBOL, name, GuardOp.DIVISIBLE, divisor)


def _divisible_extent(number: int, divisor: int) -> GuardAtom:
    return GuardAtom(GuardSubject.PARAM_EXTENT, number, GuardOp.DIVISIBLE, divisor)


def _follows_data(kernel: Kernel) -> bool:
    """True if positions are data, or if several points may update one element."""
    return any(isinstance(s, Indirect) for s in kernel.body) or bool(scattering_stores(kernel))


def _stored_at_each_point(kernel: Kernel) -> int | None:
    """The number of a stored parameter that has one element for each point."""
    points = numel(kernel.outer)
    for number, param in enumerate(kernel.params):
        if param.access is not Access.READ and param.size_elems is points:
            return number
    return None


def _width_classes(kernel: Kernel, memory: MemoryFacts, base: VariantPlan) -> list[VariantPlan]:
    """Variants that hold a whole row of a reduction whose extent varies, up to a limit."""
    width = numel(kernel.reduction)
    if len(width.symbols) != 1 or width.constant or reads_columns(kernel, memory):
        return []
    (name,) = width.symbols
    factor = width.coefficient_of(name)
    if factor is None or not factor.is_constant:
        return []
    found = []
    for limit in _WIDTH_CLASSES:
        largest = limit // factor.as_int()
        if largest >= ALIGNMENT_BYTES:
            atom = GuardAtom(GuardSubject.SYMBOL, name, GuardOp.LE, largest)
            found.append(replace(base, guard=(*base.guard, atom), width_limit=limit))
    return found


def plan_index_variants(kernel: Kernel) -> tuple[VariantPlan, ...]:
    """Variants that differ only in index width, for toolchains that take no other assumptions."""
    if not needs_64_bit_indices(kernel):
        return (VariantPlan({}, 32, ()),)
    general = VariantPlan({}, 64, ())
    if not _can_be_narrow(kernel):
        return (general,)
    return VariantPlan({}, 32, _narrow_guard(kernel, uses_pointer_range=False)), general


def _pointer_assumptions(
    kernel: Kernel, is_aligned: bool, uses_pointer_range: bool, assumed_small: bool = False
) -> Assumptions:
    assumptions: dict[str, tuple[tuple[str, int], ...]] = {}
    for position, param in enumerate(kernel.params):
        facts = [DIVISIBLE] if is_aligned else []
        if uses_pointer_range and (assumed_small or _is_small(kernel, position)):
            facts.append(_SMALL_BUFFER)
        if facts:
            assumptions[f"{param.name}_ptr"] = tuple(facts)
    return assumptions


def _alignment_guard(kernel: Kernel) -> tuple[GuardAtom, ...]:
    return tuple(
        GuardAtom(GuardSubject.PARAM_ADDRESS, position, GuardOp.DIVISIBLE, ALIGNMENT_BYTES)
        for position in range(len(kernel.params))
    )


def _narrow_guard(kernel: Kernel, uses_pointer_range: bool) -> tuple[GuardAtom, ...]:
    """Conditions for 32-bit positions, in buffers and along reductions, and for pointer ranges.

    A pointer range needs a buffer below 2 GiB. The number of outer points needs no condition: each
    outer point stores to an element of its own, so the number is at most a guarded extent.
    """
    atoms = []
    for position, param in enumerate(kernel.params):
        limit = INDEX_LIMIT
        if uses_pointer_range:
            limit = min(limit, _BUFFER_LIMIT_BYTES // param.dtype.itemsize_bytes)
        _, high = kernel_bounds(kernel).interval(param.size_elems)
        if high is None or high >= limit:
            atoms.append(GuardAtom(GuardSubject.PARAM_EXTENT, position, GuardOp.LT, limit))
    width = numel(kernel.reduction)
    if not _is_within_buffer(kernel, width):
        for name in sorted(width.symbols):
            factor = width.coefficient_of(name)
            per_unit = factor.as_int() if factor is not None and factor.is_constant else 1
            atoms.append(
                GuardAtom(GuardSubject.SYMBOL, name, GuardOp.LT, INDEX_LIMIT // max(1, per_unit))
            )
    return tuple(atoms)


def _can_be_narrow(kernel: Kernel) -> bool:
    """True if a guard can bound every position.

    No static extent may be too large, and the reduction has no more points than a buffer has
    elements, or few if each size is small.
    """
    fixed: list[Expr] = [param.size_elems for param in kernel.params]
    fixed += [numel(kernel.outer), numel(kernel.reduction)]
    if any(size.is_constant and size.as_int() > INDEX_LIMIT for size in fixed):
        return False
    width = numel(kernel.reduction)
    if _is_within_buffer(kernel, width):
        return True
    if len(width.symbols) <= 1 and all(width.coefficient_of(n) is not None for n in width.symbols):
        return True
    sizes = tuple(
        replace(size, upper=min(size.upper or INDEX_LIMIT, INDEX_LIMIT) - 1)
        for size in kernel.sizes
    )
    _, high = kernel_bounds(replace(kernel, sizes=sizes)).interval(width)
    return high is not None and high <= INDEX_LIMIT


def _is_within_buffer(kernel: Kernel, width: Expr) -> bool:
    """True if the elements of a buffer are the points of a reduction, or a multiple of them."""
    if width.is_constant:
        return False
    bounds = kernel_bounds(kernel)
    for param in kernel.params:
        times = param.size_elems // width
        if times * width is param.size_elems and bounds.interval(times)[0] not in (None, 0):
            return True
    return False


def _is_small(kernel: Kernel, position: int) -> bool:
    param = kernel.params[position]
    _, high = kernel_bounds(kernel).interval(param.size_elems)
    return high is not None and high * param.dtype.itemsize_bytes < _BUFFER_LIMIT_BYTES


def _stride_symbols(kernel: Kernel) -> tuple[str, ...]:
    """Sizes that multiply or divide other indices: their divisibility decides the vector width."""
    sizes = {size.name for size in kernel.sizes}
    found: set[str] = set()
    for statement in kernel.body:
        index = index_of(statement)
        if index is not None:
            found |= sizes & index.symbols
    return tuple(sorted(found))
