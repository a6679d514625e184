"""A user's kernel as a node of a captured graph, `triton.kernel`, and back.

    triton.kernel(arguments...), grids, kernel, key, writes

`arguments` are those of a launch, in the order of the kernel's parameters that have no value:
values for pointers, or none for memory that is allocated for the launch and has no content;
integers, expressions or floats for scalars. `kernel` is (entry, lines of the source, parameters,
options, further configurations). A configuration is (constants, options); the first one is what
parameters and options state. `grids` has a grid of up to three extents for each configuration; it
is empty if the caller launches the kernel. `key` are the positions of the arguments that autotuning
names as its key. `writes` are the positions of the arguments that the kernel changes. The node
changes nothing: its results are these arguments after the launch, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.dtypes import DType
from kernelfarm.errors import UserKernelError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Arg, Node, Ref
from kernelfarm.ir.triton.bounds import MAX_CONFIGURATIONS, MAX_CONFIGURED_CHARS
from kernelfarm.ir.triton.user_kernel import (
    GRID_SIZES,
    Configuration,
    FixedParam,
    Pointer,
    Scalar,
    UserKernel,
    UserParam,
    Value,
)
from kernelfarm.ir.work_budget import spend

_STEPS_A_PARAM = 4
"""Steps of the work budget for a parameter of a configuration: it is built, and checked again."""
_ATTRIBUTES = ("grids", "kernel", "key", "writes")


def kernel_arg(kernel: UserKernel, further: Sequence[Configuration] = ()) -> Arg:
    """The attribute `kernel` of a node; the kernel's name is left out.

    `further` are the configurations beside the one that the kernel states.
    """
    return (
        kernel.entry,
        tuple(kernel.source.removesuffix("\n").split("\n")),
        tuple(_param_arg(param) for param in kernel.params),
        kernel.options,
        tuple((configuration.constants, configuration.options) for configuration in further),
    )


def kernels_of_arg(arg: Arg, name: str = "kernel") -> tuple[UserKernel, ...]:
    """The kernels of an attribute, one for each configuration; `check_user_kernel` checks each.

    Raises:
        UserKernelError: the attribute has another form, or there are too many configurations.
    """
    match arg:
        case (str() as entry, tuple() as lines, tuple() as params, tuple() as options, further):
            source = "\n".join(line for line in lines if isinstance(line, str)) + "\n"
            kernel = UserKernel(
                name,
                source,
                entry,
                tuple(_param_of_arg(param) for param in params),
                tuple(_option(option) for option in options),
            )
            return (kernel, *_configured(kernel, further))
        case _:
            raise UserKernelError(
                "the attribute `kernel` has another form; expected function, lines, parameters,"
                " options and configurations"
            )


def check_configurations(kernel: UserKernel, count: int) -> None:
    """Passes a number of configurations that a request may have compiled.

    Raises:
        UserKernelError: there are too many, or each has a copy of a long source.
    """
    most = min(MAX_CONFIGURATIONS, max(MAX_CONFIGURED_CHARS // max(len(kernel.source), 1), 1))
    if count > most:
        raise UserKernelError(
            f"user kernel {kernel.entry[:60]} has {count} configurations and a source of"
            f" {len(kernel.source)} characters; expected at most {most} configurations: leave some"
            " out by `prune_configs_by`"
        )


def _configured(kernel: UserKernel, further: Arg) -> tuple[UserKernel, ...]:
    if not isinstance(further, tuple):
        raise UserKernelError("the configurations of a kernel have another form; expected a tuple")
    check_configurations(kernel, 1 + len(further))
    fixed = {param.name for param in kernel.params if isinstance(param, FixedParam)}
    found = []
    for arg in further:
        spend(_STEPS_A_PARAM * len(kernel.params))
        configuration = _configuration(arg)
        others = sorted({name for name, _ in configuration.constants} - fixed)
        if others:
            raise UserKernelError(
                f"a configuration gives {others[0][:60]} a value; expected values of constants only"
            )
        found.append(kernel.configured(configuration))
    return tuple(found)


def _configuration(arg: Arg) -> Configuration:
    match arg:
        case (tuple() as constants, tuple() as options):
            return Configuration(
                tuple(map(_constant, constants)), tuple(_option(option) for option in options)
            )
        case _:
            raise UserKernelError(
                "a configuration has another form; expected constants and options"
            )


def _constant(arg: Arg) -> tuple[str, Value]:
    match arg:
        case (str() as name, value):
            return name, value_of_arg(value)
        case _:
            raise UserKernelError("a constant has another form; expected a name and a value")


def check_node(node: Node) -> tuple[UserKernel, ...]:
    """The kernels of a node, whose arguments, grids and results fit them: one by configuration.

    Raises:
        UserKernelError: what was seen and what was expected.
    """
    if tuple(name for name, _ in node.attrs) != _ATTRIBUTES:
        raise UserKernelError(f"attributes of a user kernel; expected {', '.join(_ATTRIBUTES)}")
    kernels = kernels_of_arg(node.attr("kernel"))
    launched = kernels[0].launched
    if len(node.args) != len(launched):
        raise UserKernelError(f"{len(node.args)} arguments; expected {len(launched)}")
    for param, arg in zip(launched, node.args, strict=True):
        _check_argument(param, arg)
    _check_grids(node.attr("grids"), len(kernels))
    key_arguments(node)
    writes = written_arguments(node)
    if any(arg is None and position not in writes for position, arg in enumerate(node.args)):
        raise UserKernelError("an argument is none and not written; expected a tensor")
    if len(writes) != len(node.results):
        raise UserKernelError(f"{len(node.results)} results; expected {len(writes)}, one each")
    return kernels


def _check_grids(grids: Arg, count: int) -> None:
    if grids == ():
        return
    if not isinstance(grids, tuple) or len(grids) != count or not all(map(_is_grid, grids)):
        raise UserKernelError(
            f"the grids; expected {count}, one for each configuration, of at most three integers or"
            " expressions"
        )


def _is_grid(grid: Arg) -> bool:
    return isinstance(grid, tuple) and len(grid) <= GRID_SIZES and all(map(_is_size, grid))


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


def key_arguments(node: Node) -> tuple[int, ...]:
    """The positions of the numbers for which the client chooses a configuration anew.

    Raises:
        UserKernelError: a position is no number's.
    """
    key = node.attr("key")
    found = tuple(n for n in key if type(n) is int) if isinstance(key, tuple) else ()
    is_good = isinstance(key, tuple) and len(found) == len(key)
    if not is_good or not all(
        0 <= n < len(node.args) and not isinstance(node.args[n], Ref | None) for n in found
    ):
        raise UserKernelError("the attribute `key`; expected positions of numbers")
    return found


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
