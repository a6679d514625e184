"""The closed operator table: what each captured operator means in Prims.

One file holds one family. Importing this package fills the table.
"""

from __future__ import annotations

from frontend_svc.operators.core.extents import Extents, text_of
from frontend_svc.operators.core.prims_builder import Lowering
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
from frontend_svc.operators.elementwise import (
    arithmetic,
    bitwise,
    comparison,
    conversion,
    division,
    divisors,
    float_parts,
    pointwise,
    power,
    selection,
)
from frontend_svc.operators.extern import attention, contractions, groups
from frontend_svc.operators.images import antialiasing, resampling, resampling_gradients, sampling
from frontend_svc.operators.indexing import gathers, masks, scatters, unpooling
from frontend_svc.operators.nn import (
    activation,
    activation_gradients,
    class_losses,
    embedding_bags,
    losses,
    normalization,
    normalization_training,
    softmax,
    weight_norms,
)
from frontend_svc.operators.random import choices, numbers
from frontend_svc.operators.reductions import (
    distances,
    over_axes,
    scans,
    segments,
    statistics,
    vector_products,
)
from frontend_svc.operators.shapes import (
    creation,
    diagonals,
    joining,
    rearranging,
    slicing,
    spaced,
    views,
)
from frontend_svc.operators.sorting import histograms, ordering, searching
from frontend_svc.operators.special import (
    airy,
    chebyshev_polynomials,
    error_functions,
    formulas,
    gamma_functions,
    modified_bessel,
    orthogonal_polynomials,
    oscillating_bessel,
    window_functions,
    zeta,
)
from frontend_svc.operators.windows import (
    adaptive_pooling,
    average_pooling,
    max_pooling,
    padding,
    padding_gradients,
    pool_gradients,
    random_pooling,
    unfolding,
)

FAMILIES = (
    activation,
    activation_gradients,
    adaptive_pooling,
    airy,
    antialiasing,
    arithmetic,
    attention,
    bitwise,
    chebyshev_polynomials,
    class_losses,
    comparison,
    contractions,
    conversion,
    creation,
    diagonals,
    distances,
    division,
    divisors,
    embedding_bags,
    error_functions,
    float_parts,
    groups,
    histograms,
    gamma_functions,
    gathers,
    joining,
    losses,
    masks,
    max_pooling,
    modified_bessel,
    normalization_training,
    normalization,
    ordering,
    orthogonal_polynomials,
    oscillating_bessel,
    padding,
    padding_gradients,
    pointwise,
    pool_gradients,
    power,
    choices,
    numbers,
    random_pooling,
    rearranging,
    over_axes,
    resampling,
    resampling_gradients,
    sampling,
    scans,
    scatters,
    searching,
    selection,
    segments,
    slicing,
    softmax,
    spaced,
    formulas,
    statistics,
    unfolding,
    unpooling,
    vector_products,
    views,
    weight_norms,
    window_functions,
    average_pooling,
    zeta,
)
"""The modules that fill the table."""

__all__ = [
    "DECOMPOSED",
    "EXTERN_CHECKS",
    "EXTERN_GROUPS",
    "EXTERN_OPERANDS",
    "FAMILIES",
    "Extents",
    "ExternGroup",
    "Lowering",
    "NotDecomposedError",
    "Operator",
    "Tensor",
    "extern_group_of",
    "text_of",
]
