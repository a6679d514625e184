"""A user's kernel as a node of a captured graph, `triton.kernel`, and back.

    triton.kernel(arguments...), configurations, grid, kernel, writes

`arguments` are those of a launch, in the order of the kernel's parameters that have no value:
values for pointers, or none for memory that is allocated for the launch and has no content;
integers, expressions or floats for scalars. `configurations` is the
number of configurations among which this kernel is the first. `grid` has up to three extents; it
is empty if the caller launches the kernel. `kernel` is (entry, lines of the source, parameters,
options). `writes` are the positions of the arguments that the kernel changes. The node changes
nothing: its results are these arguments after the launch, in this order.
"""

from __future__ import annotations

from kernelfarm.dtypes import DType
from kernelfarm.errors import UserKernelError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Arg, Node, Ref
from kernelfarm.ir.triton.user_kernel import (
    GRID_SIZES,
    FixedParam,
    Pointer,
    Scalar,
    UserKernel,
    UserParam,
    Value,
)

_ATTRIBUTES = ("configurations", "grid", "kernel", "writes")


def kernel_arg(kernel: UserKernel) -> Arg:
    """The attribute `kernel` of a node; the kernel's name is left out."""
    return (
        kernel.entry,
        tuple(kernel.source.removesuffix("\n").split("\n")),
        tuple(_param_arg(param) for param in kernel.params),
        tuple((name, value) for name, value in kernel.options),
    )


def kernel_of_arg(arg: Arg, name: str = "kernel") -> UserKernel:
    """The kernel of an attribute; `check_user_kernel` checks its rules.

    Raises:
        UserKernelError: the attribute has another form.
    """
    match arg:
        case (str() as entry, tuple() as lines, tuple() as params, tuple() as options):
            source = "\n".join(line for line in lines if isinstance(line, str)) + "\n"
            return UserKernel(
                name,
                source,
                entry,
                tuple(_param_of_arg(param) for param in params),
                tuple(_option(option) for option in options),
            )
        case _:
            raise UserKernelError(
                "the attribute `kernel` has another form; expected function, lines, parameters and"
                " options"
            )


def check_node(node: Node) -> UserKernel:
    """The kernel of a node whose arguments, grid and results fit it.

    Raises:
        UserKernelError: what was seen and what was expected.
    """
    if tuple(name for name, _ in node.attrs) != _ATTRIBUTES:
        raise UserKernelError(f"attributes of a user kernel; expected {', '.join(_ATTRIBUTES)}")
    kernel = kernel_of_arg(node.attr("kernel"))
    launched = kernel.launched
    if len(node.args) != len(launched):
        raise UserKernelError(f"{len(node.args)} arguments; expected {len(launched)}")
    for param, arg in zip(launched, node.args, strict=True):
        _check_argument(param, arg)
    grid = node.attr("grid")
    if not isinstance(grid, tuple) or len(grid) > GRID_SIZES or not all(map(_is_size, grid)):
        raise UserKernelError("the grid; expected at most three integers or expressions")
    if type(node.attr("configurations")) is not int:
        raise UserKernelError("the number of configurations; expected an integer")
    writes = written_arguments(node)
    if any(arg is None and position not in writes for position, arg in enumerate(node.args)):
        raise UserKernelError("an argument is none and not written; expected a tensor")
    if len(writes) != len(node.results):
        raise UserKernelError(f"{len(node.results)} results; expected {len(writes)}, one each")
    return kernel


def written_arguments(node: Node) -> tuple[int, ...]:
    """The positions of the arguments that a node's kernel changes, in the order of its results.

    Raises:
        UserKernelError: a position is no tensor's, or occurs twice.
    """
    writes = node.attr("writes")
    found = [w for w in writes if type(w) is int] if isinstance(writes, tuple) else []
    is_good = isinstance(writes, tuple) and len(found) == len(writes) == len(set(found))
    if not is_good or not all(
        0 <= w < len(node.args) and (node.args[w] is None or isinstance(node.args[w], Ref))
        for w in found
    ):
        raise UserKernelError("the attribute `writes`; expected distinct positions of tensors")
    return tuple(found)


def _check_argument(param: Pointer | Scalar, arg: Arg) -> None:
    if isinstance(param, Pointer):
        if not (arg is None or isinstance(arg, Ref)):
            raise UserKernelError(f"argument {param.name[:60]} is {arg!r:.40}; expected a tensor")
        return
    is_float = param.dtype in (DType.F32, DType.F64)
    if not (isinstance(arg, float) if is_float else _is_size(arg)):
        expected = "a float" if is_float else "an integer or an expression"
        raise UserKernelError(f"argument {param.name[:60]} is {arg!r:.40}; expected {expected}")


def _is_size(arg: Arg) -> bool:
    return isinstance(arg, int | Expr)


def _param_arg(param: UserParam) -> Arg:
    match param:
        case FixedParam(name, value):
            return (name, "fixed", value)
        case Pointer(name, dtype):
            return (name, "pointer", dtype)
        case Scalar(name, dtype, divisor):
            return (name, "scalar", dtype, divisor)


def _param_of_arg(arg: Arg) -> UserParam:
    match arg:
        case (str() as name, "fixed", value):
            return FixedParam(name, value_of_arg(value))
        case (str() as name, "pointer", DType() as dtype):
            return Pointer(name, dtype)
        case (str() as name, "scalar", DType() as dtype, int() as divisor):
            return Scalar(name, dtype, divisor)
        case _:
            raise UserKernelError(
                "a parameter has another form; expected a name, its kind, and a type or a value"
            )


def value_of_arg(arg: Arg) -> Value:
    """The value of a constant.

    Raises:
        UserKernelError: it is no plain value.
    """
    if arg is None or isinstance(arg, bool | int | float | str | DType):
        return arg
    if isinstance(arg, tuple):
        return tuple(value_of_arg(item) for item in arg)
    raise UserKernelError(f"a constant of type {type(arg).__name__}; expected a plain value")


def _option(arg: Arg) -> tuple[str, int]:
    match arg:
        case (str() as name, int() as value):
            return name, value
        case _:
            raise UserKernelError("an option has another form; expected a name and an integer")
