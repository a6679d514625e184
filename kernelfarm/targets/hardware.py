"""Facts about kinds of chips, and about what their toolchains take."""

from __future__ import annotations

from dataclasses import dataclass


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
    row of up to `held_row_bytes` that several loops read is held by one block in pieces, one of up
    to `cluster_row_bytes` by a cluster of `cluster_blocks` blocks. A row of `least_split_row_bytes`
    to `split_row_bytes` is held by one block, half of it in shared memory. A thread holds at most
    `held_thread_bytes` of it, or `row_thread_bytes` where loops load nothing but rows; loads of
    other values run `loads_ahead` pieces ahead of the stores. Sums of columns copy what they load
    to shared memory `column_stages` blocks ahead (0: they load to registers).
    `hints` are the names of the hints that the vendor's toolchain follows for all chips,
    `own_hints` those that it follows for this one; `hints_without_effect` says why it does not
    follow others that it has. `max_waves_per_unit` is the most waves of an execution unit, for
    chips that have such a hint. A multiprocessor, of which the chip has `multiprocessors` (0: not
    stated), makes `multiply_adds_per_cycle` of 16-bit elements, and gets `cache_bytes_per_cycle`
    from the second-level cache. `has_tensor_maps`: it copies blocks of matrices to shared memory
    by descriptors of the matrices. `has_programmatic_launches`: blocks can start before the kernel
    ahead has ended, and wait for its end. `takes_ptx`: its compiler takes instructions of PTX in
    Triton's source. `widens_float8`: an instruction of the chip widens 8-bit floats, and its
    compiler uses it. Products of matrices are computed by `matrix_instructions`.
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
    cluster_row_bytes: int = 0
    cluster_blocks: int = 1
    least_split_row_bytes: int = 0
    split_row_bytes: int = 0
    held_thread_bytes: int = 128
    row_thread_bytes: int = 128
    loads_ahead: int = 0
    column_stages: int = 0
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
    has_programmatic_launches: bool = False
    widens_float8: bool = False

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

    `scales_by_powers` says that one instruction multiplies f32 and f64 vectors by powers of two.
    `bf16_dots` names the instruction that adds the products of two pairs of bf16 to each f32 of a
    vector, `byte_dots` the one that adds the products of four bytes to each i32; None: there is
    none. `codegen_svc/emitters/llvm/dots.py` lists the names. `rounds_to_bf16`: an instruction
    rounds f32 to bf16, and LLVM has it for whole vectors. With `flushes_bf16`, it gives 0 for
    subnormal results, so kernels use it for sums of pairs alone, as the library does.
    `has_nan_maximum`: one instruction gives the larger of two floats, or NaN if one of them is.
    """

    triple: str
    cpu: str
    features: str
    scales_by_powers: bool = False
    bf16_dots: str | None = None
    byte_dots: str | None = None
    rounds_to_bf16: bool = False
    flushes_bf16: bool = False
    has_nan_maximum: bool = False


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """What a machine needs to run a CPU target.

    `elf_machine` is the ELF machine of its libraries; `flags` are the features that /proc/cpuinfo
    must list; `vector_bytes` is the width of a vector register. With `has_scalable_vectors`, the
    system chooses the width, and kernels run only where it is this one. `maker` is who made the
    processor, as /proc/cpuinfo names it: facts that were measured on its processors alone; None:
    anyone.
    """

    elf_machine: int
    vector_bytes: int
    flags: tuple[str, ...]
    has_scalable_vectors: bool = False
    maker: str | None = None
