"""Facts about a chip and about a vendor's toolchain, as typed records.

A section that does not apply to a chip is None: passes and emitters ask for facts, never for the
name of a vendor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from kernelfarm.errors import InternalError

_Section = TypeVar("_Section")


@dataclass(frozen=True, slots=True)
class TwoPassLimits:
    """The longest rows that a chip reduces better in two passes than in one, in elements.

    `rows` run along the reduction in memory, `columns` across it; None: two passes are always
    better. `varying`: rows of varying length without an upper bound are reduced in one pass.
    """

    rows: int | None = None
    columns: int | None = None
    varying: bool = False


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """How a chip's memory moves data; the defaults are the smallest numbers of known chips.

    `sector_bytes` is the smallest piece that memory moves, `line_bytes` a line of the nearest
    cache. `request_points` threads or lanes access memory at the same time. A cache keeps up to
    `cache_bytes` that all cores read again, and is `cache_speedup` times as fast as memory. About
    `block_points` consecutive points are computed together. Tiles of points along two axes have
    sides of `tile_side_bytes` of the narrowest element; None: the chip's kernels have no tiles. A
    tile costs `tile_price` times what it moves. The nearest cache has `cache_sets` sets of
    `cache_ways` lines; None: blocks are in registers.

    With fewer than `saturating_programs`, each for a row or for 64 columns of a reduction, a kernel
    does not use the whole bandwidth; None: reductions are never split. A launch takes as long as
    memory takes for `launch_bytes`.
    """

    sector_bytes: int = 32
    line_bytes: int = 64
    request_points: int = 16
    cache_bytes: int = 1048576
    cache_speedup: int = 2
    block_points: int = 1024
    tile_side_bytes: int | None = None
    tile_price: float = 1.0
    cache_sets: int | None = None
    cache_ways: int = 8
    saturating_programs: int | None = None
    launch_bytes: int = 4194304


@dataclass(frozen=True, slots=True)
class ChannelsLastFacts:
    """What the framework's convolutions save on a chip if images are channels last.

    Savings are in bytes that memory moves in the same time, for each byte of the images that a
    convolution takes and gives: `narrow_saves` for elements of 16 bits, `wide_saves` for f32. They
    and `costs`, which channels last costs more, are by kind of convolution: `dense`, `strided` if
    the result has at most half the pixels along an axis, `grouped`, `depthwise`, and `few_channels`
    for up to 4 channels; a kind that is left out saves nothing.
    A convolution in one group of an image with up to `small_elems` elements saves nothing.
    For each byte of weights, a convolution that saves something also saves `weight_saves` and costs
    `weight_costs` more, unless both layouts of the weights are the same. `turn_costs` is
    what a kernel costs more for each byte that it reads in one layout and stores in the other, and
    `launch_bytes` what another kernel costs, beyond those that channels last saves in the
    framework. Without `has_gradients`, gradients of convolutions keep the layout that they have in
    eager.
    """

    narrow_saves: tuple[tuple[str, float], ...] = ()
    wide_saves: tuple[tuple[str, float], ...] = ()
    costs: tuple[tuple[str, float], ...] = ()
    small_elems: int | None = None
    weight_saves: float | None = None
    weight_costs: float | None = None
    turn_costs: float = 0.25
    launch_bytes: int | None = None
    has_gradients: bool = True


@dataclass(frozen=True, slots=True)
class ProductFacts:
    """What the framework's matrix products need on a chip.

    If a row of an operand or result of 16-bit elements has not a multiple of `row_bytes`, the
    library takes kernels that are slower: by the time in which memory moves `bytes_per_operation`
    for each multiplication and addition of two elements.
    """

    row_bytes: int
    bytes_per_operation: float


@dataclass(frozen=True, slots=True)
class ProductTimes:
    """How long products of one width of elements take, by the framework's library and by a kernel.

    A product is x (m, k) by a weight of n x k elements. Both tables have times for some m as
    multiples of the library's time for m = 1. A product with a weight of less than
    `min_weight_bytes` is the library's: caches and launches decide its time.
    """

    min_weight_bytes: int
    library: tuple[tuple[str, float], ...] = ()
    kernel: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class FewRowFacts:
    """Times of products with few rows: `wide` of f32, `narrow` of elements of 16 bits.

    `wide_columns` and `narrow_columns` are those by weights (k, n), whose columns are contiguous.
    `integers` are those by weights of 16 bits that a model computes from integers of 8 bits,
    `shared_integers` and `shared_integer_columns` from smaller ones that share stored integers; the
    library's time includes a kernel that stores the weight. None: the library computes all of them.
    """

    wide: ProductTimes | None = None
    wide_columns: ProductTimes | None = None
    narrow: ProductTimes | None = None
    narrow_columns: ProductTimes | None = None
    integers: ProductTimes | None = None
    shared_integers: ProductTimes | None = None
    shared_integer_columns: ProductTimes | None = None


@dataclass(frozen=True, slots=True)
class TileTimes:
    """How long a processor's library takes for products of one type that kernels compute in tiles.

    A product is x (m, k) by a weight of n x k elements, (n, k) row-major. `library` has the
    library's time for some m, and all larger m up to the next one, as a multiple of a kernel's;
    `library_columns` has it for weights (k, n). A product with fewer rows than a table has, or with
    a weight of less than `min_weight_bytes`, is the library's.
    """

    min_weight_bytes: int
    library: tuple[tuple[str, float], ...] = ()
    library_columns: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TileFacts:
    """Times of products in tiles by the type of their elements; None: the library computes them."""

    f32: TileTimes | None = None
    bf16: TileTimes | None = None


@dataclass(frozen=True, slots=True)
class FrozenProductFacts:
    """Products by frozen weights that kernels compute faster than the library with packed weights.

    `one_row` are the types of elements of those of one row. Clients leave their weights as they
    are, but for a weight (k, n), which they turn into (n, k) in memory. `in_tiles` are the types of
    those of at least `least_rows` rows and `least_columns` columns.
    """

    one_row: tuple[str, ...] = ()
    in_tiles: tuple[str, ...] = ()
    least_rows: int = 1
    least_columns: int = 1


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """Which attention kernels compute faster than the framework, by the types of its elements.

    `one_query` are those of attention of one query for each head. Of `several_queries`, there are
    at least `least_queries`; their scores, f32 in memory, take at most `most_score_bytes`. Shares
    are rounded to the type of the values if it is one of `rounded_shares`, which the processor
    multiplies faster.
    """

    one_query: tuple[str, ...]
    several_queries: tuple[str, ...]
    least_queries: int
    most_score_bytes: int
    rounded_shares: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchedProductFacts:
    """Which batched products of matrices kernels compute faster than the framework's library.

    `types` are the types of their elements. Results have at least `least_extent` rows and columns.
    """

    types: tuple[str, ...]
    least_extent: int


@dataclass(frozen=True, slots=True)
class ConvolutionFacts:
    """Which convolutions kernels compute faster than the framework's library.

    `one_pixel` are the types of elements of those with a window of one pixel, of at least
    `least_channels` channels before and after them. From `packed_multiplies` multiply-adds on, the
    library is as fast with a packed weight, so frozen models pack it. `single` are the types of
    those of one image that is one pixel itself: products of one row, which memory limits.
    """

    one_pixel: tuple[str, ...]
    single: tuple[str, ...]
    least_channels: int
    packed_multiplies: int


@dataclass(frozen=True, slots=True)
class MatrixInstruction:
    """A form of a chip's instructions for matrices: (m, k) by (k, n), with sums in f32.

    `family` is the vendor's name of the instructions, `types` the element types of both factors.
    `warps` of a program execute one together. With `max_n`, n may be any multiple up to that.
    """

    family: str
    types: tuple[str, ...]
    m: int
    n: int
    k: int
    warps: int = 1
    max_n: int | None = None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A chip whose programs are blocks of threads, which run in warps.

    `triton_backend` and `triton_arch` are Triton's names of the chip. `max_registers` counts 32-bit
    registers per thread. A row of up to `max_persistent_elems` is held whole by one program;
    `reduction_elems_per_thread` is the number of elements of a row that one thread then holds. A
    row of up to `held_row_bytes` that several loops read is held by one program in pieces.
    `hints` are the names of the hints that the vendor's toolchain follows for all chips,
    `own_hints` those that it follows for this one; `hints_without_effect` says why it does not
    follow others that it has. `max_waves_per_unit` is the most waves of an execution unit, for
    chips that have such a hint. A multiprocessor, of which the chip has `multiprocessors` (0: not
    stated), makes `multiply_adds_per_cycle` of 16-bit elements, and gets `cache_bytes_per_cycle`
    from the second-level cache. `has_tensor_maps`: it copies blocks of matrices to shared memory
    by descriptors of the matrices. `takes_ptx`: its compiler takes instructions of PTX in Triton's
    source. Products of matrices are computed by `matrix_instructions`.
    """

    triton_backend: str
    triton_arch: int | str
    warp_size: int
    max_threads_per_block: int
    max_shared_bytes: int
    max_registers: int
    max_persistent_elems: int
    reduction_elems_per_thread: int
    registers_per_multiprocessor: int | None = None
    held_row_bytes: int = 0
    hints: tuple[str, ...] = ()
    own_hints: tuple[str, ...] = ()
    hints_without_effect: tuple[tuple[str, str], ...] = ()
    max_waves_per_unit: int = 0
    takes_ptx: bool = False
    matrix_instructions: tuple[MatrixInstruction, ...] = ()
    multiprocessors: int = 0
    multiply_adds_per_cycle: int = 0
    cache_bytes_per_cycle: int = 64
    has_tensor_maps: bool = False

    def multiplies(self, dtype: str) -> tuple[MatrixInstruction, ...]:
        """The chip's instructions for matrices with elements of a type."""
        return tuple(form for form in self.matrix_instructions if dtype in form.types)


@dataclass(frozen=True, slots=True)
class LocalBufferFacts:
    """A chip whose vector cores compute in a buffer of their own.

    Each block in the buffer begins at a multiple of `alignment_bytes`. `hints` are the names of the
    hints that the chip's toolchain can follow. A block has up to `max_block_copies` buffers, so
    that the next ones are fetched while one is computed.
    """

    vector_cores: int
    size_bytes: int
    alignment_bytes: int
    max_block_copies: int = 1
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CubeFacts:
    """A chip with cores for matrix products, each with buffers of its own.

    A product's operands are copied to the buffer L1, from there left ones to L0A and right ones to
    L0B. Sums are in L0C. A core multiplies fractals of `fractal_side` rows or columns, and of
    `fractal_bytes` along the sums. `types` are the element types of both factors; sums are in f32.
    """

    cores: int
    l0a_bytes: int
    l0b_bytes: int
    l0c_bytes: int
    l1_bytes: int
    fractal_side: int
    fractal_bytes: int
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TritonFacts:
    """What Triton text for a chip may contain.

    `has_exact_division`: Triton's plain division and root are approximate, and exact forms exist.
    `takes_lone_pointers`: pointers may come from a block of one index. `takes_repeated_pointers`:
    pointers may be equal along one of two axes. `takes_many_axes`: blocks may have ten axes and
    more, as a bitonic sort needs. `max_sort_elems` is the longest row that one block sorts.
    `turns_factors`: a product's factors are loaded as they lie in memory, and then transposed.
    """

    has_f64: bool
    has_exact_division: bool
    max_sort_elems: int
    takes_lone_pointers: bool = True
    takes_repeated_pointers: bool = True
    takes_many_axes: bool = True
    turns_factors: bool = False


@dataclass(frozen=True, slots=True)
class LlvmFacts:
    """A processor as LLVM names it.

    `scales_by_powers` says that one instruction multiplies f32 and f64 vectors by powers of two,
    `has_bf16_dots` that one adds the products of two pairs of bf16 to each f32 of a vector.
    """

    triple: str
    cpu: str
    features: str
    scales_by_powers: bool = False
    has_bf16_dots: bool = False


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """What a machine needs to run a CPU target.

    `elf_machine` is the ELF machine of its libraries; `flags` are the features that /proc/cpuinfo
    must list; `vector_bytes` is the width of a vector register. `maker` is who made the processor,
    as /proc/cpuinfo names it: facts that were measured on its processors alone; None: anyone.
    """

    elf_machine: int
    vector_bytes: int
    flags: tuple[str, ...]
    maker: str | None = None


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Facts about one chip.

    `name` is the descriptor (`cuda:sm_90a`), `arch` the toolchain's name of the chip. Kernels sort
    rows of up to `max_sorted_elems`, of any length if it is None. Without `channels_last`, every
    convolution keeps the layout that it has in eager; without `products`, no matrix is padded;
    without `few_rows` and `tiles`, the framework's library computes every product of matrices,
    unless a request asks for kernels.
    `adds_biases_apart`: the framework adds the bias of a convolution by a kernel of its own.
    `gradients_like_operands`: its attention gives each gradient the layout of the operand.
    Without `attention`, `convolutions` and `batched_products`, the framework computes all of them.
    """

    name: str
    vendor: str
    arch: str
    title: str
    max_sorted_elems: int | None = None
    adds_biases_apart: bool = False
    gradients_like_operands: bool = False
    max_kernel_name_chars: int | None = None
    max_two_pass_elems: tuple[tuple[str, TwoPassLimits], ...] = ()
    memory: MemoryFacts = MemoryFacts()
    channels_last: ChannelsLastFacts | None = None
    products: ProductFacts | None = None
    few_rows: FewRowFacts | None = None
    tiles: TileFacts | None = None
    frozen_products: FrozenProductFacts = FrozenProductFacts()
    attention: AttentionFacts | None = None
    convolutions: ConvolutionFacts | None = None
    batched_products: BatchedProductFacts | None = None
    gpu: GpuFacts | None = None
    local_buffer: LocalBufferFacts | None = None
    cube: CubeFacts | None = None
    triton: TritonFacts | None = None
    processor: ProcessorFacts | None = None
    llvm: LlvmFacts | None = None

    @property
    def hints(self) -> tuple[str, ...]:
        """The names of the hints that the chip's toolchain can follow."""
        if self.gpu is not None:
            return tuple(sorted((*self.gpu.hints, *self.gpu.own_hints)))
        return () if self.local_buffer is None else self.local_buffer.hints

    @property
    def has_matrix_units(self) -> bool:
        """True if programs compute tiles of products by the chip's units for matrices."""
        return self.gpu is not None or self.cube is not None

    def multiplies(self, dtype: str) -> bool:
        """True if the chip's units for matrices take factors of an element type."""
        if self.gpu is not None:
            return bool(self.gpu.multiplies(dtype))
        return self.cube is not None and dtype in self.cube.types

    def two_passes(self, op: str) -> TwoPassLimits:
        """Up to which row length two passes compute a guided reduction of the loop IR better."""
        return dict(self.max_two_pass_elems).get(op, TwoPassLimits())

    def section(self, kind: type[_Section]) -> _Section:
        """The facts of one kind, for a backend that cannot do without them.

        Raises:
            InternalError: the chip's file has no such section.
        """
        sections = (
            *(self.gpu, self.local_buffer, self.cube),
            *(self.triton, self.processor, self.llvm),
        )
        for stated in sections:
            if isinstance(stated, kind):
                return stated
        raise InternalError(
            f"the file of target {self.name} states no {kind.__name__}, which its backend needs;"
            " add the section that kernelfarm/targets/facts.py describes"
        )


@dataclass(frozen=True, slots=True)
class CompileCost:
    """The processor time that a vendor's toolchain takes, in milliseconds.

    `base_ms` for each variant, `plain_ms` for each statement, `math_ms` for the operations that
    become a mathematical function, each in one variant. `calls_math`: kernels with many such
    functions call them instead of holding copies. `unrolls_rows`: sorts, scans and reductions are
    unrolled.
    """

    base_ms: float = 50.0
    plain_ms: float = 3.0
    variants: int = 2
    calls_math: bool = False
    unrolls_rows: bool = True
    math_ms: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class VendorFacts:
    """Facts about a vendor's toolchain and about the queue of its kernels.

    `has_process_per_job`: a farm starts many workers that compile one kernel each, instead of one
    worker that compiles many.
    """

    vendor: str
    has_process_per_job: bool = False
    compile_cost: CompileCost = CompileCost()
