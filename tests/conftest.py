"""What all tests share: one running farm, and the list of checks that could not run.

The farm runs workers for the CPU and for whatever vendors the collected tests name with
`@pytest.mark.vendors("cuda", ...)`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.farm_process import Farm, running_farm

pytest_plugins = ["tests.not_run"]


@pytest.fixture(scope="session")
def farm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Farm]:
    """A farm that all tests of the session share; tests that hurt it start their own."""
    vendors = {"cpu"}
    for item in request.session.items:
        if "farm" in getattr(item, "fixturenames", ()):
            vendors.update(v for mark in item.iter_markers("vendors") for v in mark.args)
    with running_farm(tmp_path_factory.mktemp("farm"), ",".join(sorted(vendors))) as running:
        yield running
