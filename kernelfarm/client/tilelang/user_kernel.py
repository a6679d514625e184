"""A tile program as a user's Triton kernel, which the farm compiles for several vendors."""

from __future__ import annotations

from kernelfarm.client.tilelang.emission import pointer_name
from kernelfarm.client.tilelang.program import TileProgram
from kernelfarm.client.tilelang.write_triton import size_name, write_triton
from kernelfarm.digest import named_user_kernel
from kernelfarm.dtypes import DType
from kernelfarm.ir.triton.check_kernel import check_user_kernel
from kernelfarm.ir.triton.user_kernel import Pointer, Scalar, UserKernel, UserParam


def tile_kernel(program: TileProgram, warps: int | None) -> UserKernel:
    """The kernel of a tile program, with a number of warps for each block, or for a chip without.

    Raises:
        TileProgramError: a statement is outside of what is accepted.
        UserKernelError: the kernel is outside of the language of users' kernels.
    """
    params: tuple[UserParam, ...] = (
        *(Pointer(pointer_name(tensor), tensor.dtype) for tensor in program.params),
        *(Scalar(size_name(size), DType.I32) for size in program.sizes),
    )
    options = () if warps is None else (("num_warps", warps),)
    kernel = UserKernel("kernel", write_triton(program), program.name, params, options)
    check_user_kernel(kernel)
    return named_user_kernel(kernel)


def warps_of(program: TileProgram, warp_size: int) -> int:
    """The warps of a block: Triton takes a power of two, so at most as many as were asked for."""
    return 1 << max(program.threads // warp_size, 1).bit_length() - 1
