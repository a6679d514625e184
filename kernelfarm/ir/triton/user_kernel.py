"""A user's Triton kernel as data: its source, and what one compilation of it assumes.

Grammar:

    UserKernel ::= name, source, entry, params: [UserParam], options: [(name, integer)], template
    UserParam  ::= Pointer(dtype) | Scalar(dtype, divisor) | Constant(value)
    value      ::= None | bool | int | float | str | DType | (value, ...)

    Configuration ::= constants: [(name, value)], options: [(name, integer)]

The parameters are those of the function `entry`, in order. At a launch, pointers are buffers and
scalars are sizes, in the order of the parameters; a float is passed as the bits of an integer.
Three more sizes behind the scalars are the grid. A configuration is what autotuning varies: values
of some constants, and options.

`template` is empty for kernels of users. A kernel of the farm's own may name a template there: code
that a code generator has for some chips, and that computes the same as the source, by instructions
which the language of the source does not have. It takes the place of the source where buffers are
aligned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Union

from kernelfarm.dtypes import DType

Value = Union[None, bool, int, float, str, DType, tuple["Value", ...]]
"""The value of a constant parameter."""

GRID_SIZES = 3

FLASH_ATTENTION_TEMPLATE = "flash_attention"
"""The template of attention with several queries; it has parameters of its kernel's names."""
FLASH_GRADIENTS_TEMPLATE = "flash_gradients"
"""The template of the gradients of such attention."""
TEMPLATES = frozenset({FLASH_ATTENTION_TEMPLATE, FLASH_GRADIENTS_TEMPLATE})
"""The names of all templates."""

USER_KERNEL_OP = "triton.kernel"
"""The operator of nodes that stand for kernels of users; see `node.py`."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address of a buffer of one element type."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that each launch passes; it is a multiple of `divisor`."""

    name: str
    dtype: DType
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class FixedParam:
    """A parameter whose value is compiled into the kernel."""

    name: str
    value: Value


UserParam = Union[Pointer, Scalar, FixedParam]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Values of constants by parameter, and all options, of one of a kernel's compilations."""

    constants: tuple[tuple[str, Value], ...] = ()
    options: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        """The configuration for people: `BM=128, num_warps=8`."""
        return ", ".join(f"{name}={value}" for name, value in (*self.constants, *self.options))


@dataclass(frozen=True, slots=True)
class UserKernel:
    """One compilation of a user's kernel; its name is debug text, which is part of no key."""

    name: str
    source: str
    entry: str
    params: tuple[UserParam, ...]
    options: tuple[tuple[str, int], ...] = ()
    template: str = ""

    @property
    def pointers(self) -> tuple[Pointer, ...]:
        """The parameters that are buffers, in order."""
        return tuple(param for param in self.params if isinstance(param, Pointer))

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """The parameters that are numbers of a launch, in order."""
        return tuple(param for param in self.params if isinstance(param, Scalar))

    @property
    def launched(self) -> tuple[Pointer | Scalar, ...]:
        """The parameters that a launch passes, in order."""
        return tuple(param for param in self.params if not isinstance(param, FixedParam))

    @property
    def constants(self) -> dict[str, Value]:
        """The values that are compiled into the kernel, by parameter."""
        return {param.name: param.value for param in self.params if isinstance(param, FixedParam)}

    def configured(self, configuration: Configuration) -> UserKernel:
        """The kernel with a configuration's constants, and its options instead of its own."""
        constants = dict(configuration.constants)
        params = tuple(
            FixedParam(param.name, constants[param.name]) if param.name in constants else param
            for param in self.params
        )
        return replace(self, params=params, options=configuration.options)
