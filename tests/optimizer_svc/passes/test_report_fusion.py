"""The report names what was made, and why the rest was not."""

from __future__ import annotations

from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.optimizer_svc.passes.cat_graphs import MANY, inputs_of
from tests.optimizer_svc.passes.report_graphs import NO_PLACES
from tests.support.prims_graphs import Maker, report_of
from tests.support.single_operator import lowered


def test_the_report_says_how_each_cat_is_made() -> None:
    make = Maker()
    few = make.add("cat", *inputs_of(make, 2, 4, 3), dim=0)
    many = make.add("cat", *inputs_of(make, MANY, 4, 3), dim=0)
    report = report_of(make.returning(few, many))
    assert "cat of 2 pieces (no captured node): selected where it is read" in report
    assert "cat of 20 pieces (no captured node): stored piece by piece" in report


def test_the_report_names_no_kernel_that_was_not_made() -> None:
    # Ranks of what is not zero: a scan, then the places of none of them.
    report = dict(optimize(lowered(NO_PLACES).graph, target_facts("cuda:sm_90a")).stages)["report"]
    assert "launches: 1 of 1" in report  # the scan; what would place it is gone
