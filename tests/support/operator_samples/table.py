"""Sample calls of every operator that decomposes, for the property tests."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.operator_samples.aliases import kin_calls
from tests.support.operator_samples.images import image_calls
from tests.support.operator_samples.masks_and_segments import place_calls
from tests.support.operator_samples.pointwise import conversion_calls, pointwise_calls
from tests.support.operator_samples.reductions import loss_calls, reduction_calls
from tests.support.operator_samples.scans_and_scatters import scan_and_scatter_calls
from tests.support.operator_samples.searches import search_calls
from tests.support.operator_samples.selections import selection_calls
from tests.support.operator_samples.sorts import order_calls
from tests.support.operator_samples.special_functions import special_calls
from tests.support.operator_samples.training import training_calls
from tests.support.operator_samples.windows import window_calls
from tests.support.single_operator import Call


def calls() -> Iterator[Call]:
    """At least one call for each operator in the table."""
    for group in (
        pointwise_calls,
        reduction_calls,
        selection_calls,
        conversion_calls,
        loss_calls,
        order_calls,
        scan_and_scatter_calls,
        place_calls,
        image_calls,
        kin_calls,
        search_calls,
        special_calls,
        training_calls,
        window_calls,
    ):
        yield from group()
