"""The closed operator table: the meaning of each captured operator in Prims.

Each folder holds one family. Importing this package imports every module of these folders, and each
module registers its operators. So a new file needs no entry anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from frontend_svc.operators.core.extents import Extents, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import (
    DECOMPOSED,
    EXTERN_CHECKS,
    EXTERN_GROUPS,
    EXTERN_OPERANDS,
    ExternGroup,
    NotDecomposedError,
    Operator,
    extern_group_of,
)
from frontend_svc.operators.core.values import Tensor


def _modules() -> Iterator[ModuleType]:
    for family in iter_modules(__path__, f"{__name__}."):
        if family.ispkg:
            folder = import_module(family.name).__path__
            for found in iter_modules(folder, f"{family.name}."):
                yield import_module(found.name)


FAMILIES = tuple(_modules())
"""The modules that fill the table, in the order of their names."""

__all__ = [
    "DECOMPOSED",
    "EXTERN_CHECKS",
    "EXTERN_GROUPS",
    "EXTERN_OPERANDS",
    "FAMILIES",
    "Extents",
    "ExternGroup",
    "NotDecomposedError",
    "Operator",
    "PrimsBuilder",
    "Tensor",
    "extern_group_of",
    "text_of",
]
