"""Facts about a chip and about a vendor's toolchain, as typed records.

A section that does not apply to a chip is None: passes and emitters ask for facts, never for the
name of a vendor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from kernelfarm.errors import InternalError
from kernelfarm.targets.contractions import (
    AttentionFacts,
    BatchedProductFacts,
    ConvolutionFacts,
    DepthwiseFacts,
    DepthwiseTemplateFacts,
    FewRowFacts,
    FlashAttentionFacts,
    FrozenProductFacts,
    ManyRowFacts,
    ProductFacts,
    SplitAttentionFacts,
    TileFacts,
    WinogradFacts,
)
from kernelfarm.targets.hardware import (
    CubeFacts,
    GpuFacts,
    LlvmFacts,
    LocalBufferFacts,
    ProcessorFacts,
    TritonFacts,
)
from kernelfarm.targets.memory import ChannelsLastFacts, MemoryFacts, TwoPassLimits

_Section = TypeVar("_Section")
_USUAL_MEMORY = MemoryFacts()
_NO_FROZEN_PRODUCTS = FrozenProductFacts()


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Facts about one chip.

    `name` is the descriptor (`cuda:sm_90a`), `arch` the toolchain's name of the chip. Kernels sort
    rows of up to `max_sorted_elems`, of any length if it is None. Without `channels_last`, every
    convolution keeps the layout that it has in eager; without `products`, no matrix is padded;
    without `few_rows`, `many_rows` and `tiles`, the framework's library computes every product of
    matrices, unless a request asks for kernels.
    `updates_in_order`: kernels update elements at positions that are data one after the other, so
    that sums of floats and the last of several writes are the same in each run.
    `adds_biases_apart`: the framework adds the bias of a convolution by a kernel of its own.
    `gradients_like_operands`: its attention gives each gradient the layout of the operand.
    Without `attention`, `split_attention`, `flash_attention`, `convolutions`, `batched_products`,
    `winograd`, `depthwise_template` and `depthwise`, the framework computes all of them.
    """

    name: str
    vendor: str
    arch: str
    title: str
    max_sorted_elems: int | None = None
    updates_in_order: bool = False
    adds_biases_apart: bool = False
    gradients_like_operands: bool = False
    max_kernel_name_chars: int | None = None
    max_two_pass_elems: tuple[tuple[str, TwoPassLimits], ...] = ()
    memory: MemoryFacts = _USUAL_MEMORY
    channels_last: ChannelsLastFacts | None = None
    products: ProductFacts | None = None
    few_rows: FewRowFacts | None = None
    many_rows: ManyRowFacts | None = None
    tiles: TileFacts | None = None
    frozen_products: FrozenProductFacts = _NO_FROZEN_PRODUCTS
    attention: AttentionFacts | None = None
    split_attention: SplitAttentionFacts | None = None
    flash_attention: FlashAttentionFacts | None = None
    convolutions: ConvolutionFacts | None = None
    batched_products: BatchedProductFacts | None = None
    winograd: WinogradFacts | None = None
    depthwise: DepthwiseFacts | None = None
    depthwise_template: DepthwiseTemplateFacts | None = None
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
