"""The closed operator table: what each captured operator means in Prims.

One file holds one family. Importing this package fills the table.
"""

from __future__ import annotations

from frontend_svc.operators import (
    activation,
    activation_gradients,
    adaptive_pooling,
    arithmetic,
    bitwise,
    class_losses,
    comparison,
    contractions,
    conversion,
    creation,
    diagonals,
    division,
    framework,
    indexing,
    joining,
    losses,
    max_pooling,
    norm_training,
    modified_bessel,
    normalization,
    padding,
    padding_gradients,
    pointwise,
    pool_gradients,
    power,
    rearranging,
    reductions,
    selection,
    slicing,
    softmax,
    special_functions,
    statistics,
    unfolding,
    vector_products,
    views,
    windows,
)
from frontend_svc.operators.extents import Extents, text_of
from frontend_svc.operators.lowering import Lowering
from frontend_svc.operators.registry import (
    DECOMPOSED,
    EXTERN,
    ExternOperator,
    NotDecomposedError,
    Operator,
)
from frontend_svc.operators.values import Tensor

FAMILIES = (
    activation,
    activation_gradients,
    adaptive_pooling,
    arithmetic,
    bitwise,
    class_losses,
    comparison,
    contractions,
    conversion,
    creation,
    diagonals,
    division,
    framework,
    indexing,
    joining,
    losses,
    max_pooling,
    norm_training,
    modified_bessel,
    normalization,
    padding,
    padding_gradients,
    pointwise,
    pool_gradients,
    power,
    rearranging,
    reductions,
    selection,
    slicing,
    softmax,
    special_functions,
    statistics,
    vector_products,
    unfolding,
    views,
    windows,
)
"""The modules that fill the table."""

__all__ = [
    "DECOMPOSED",
    "EXTERN",
    "FAMILIES",
    "Extents",
    "ExternOperator",
    "Lowering",
    "NotDecomposedError",
    "Operator",
    "Tensor",
    "text_of",
]
