"""Which tensors stream through a kernel: no cache holds them until the next kernel runs."""

from __future__ import annotations

from kernelfarm.ir.contractions import find_contraction
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import MemoryFacts


def streamed_params(kernel: Kernel, memory: MemoryFacts) -> frozenset[str]:
    """The parameters larger than the cache, if the kernel moves several times what that holds.

    Sizes that vary are not known, and a product reads its factors again and again: none of these.
    """
    if memory.streamed_bytes is None or find_contraction(kernel) is not None:
        return frozenset()
    sizes = {
        param.name: param.size_elems.constant * param.dtype.itemsize_bytes
        for param in kernel.params
        if param.size_elems.is_constant
    }
    if sum(sizes.values()) < memory.streamed_bytes:
        return frozenset()
    return frozenset(name for name, size in sizes.items() if size > memory.cache_bytes)
