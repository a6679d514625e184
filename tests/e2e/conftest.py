"""Fixtures of tests of whole farms: endpoints, and one compilation of all real inputs."""

from __future__ import annotations

import pytest

from tests.e2e.compiled_inputs import Everything, compile_everything
from tests.support.farm import Farm


@pytest.fixture(scope="session")
def everything(vendor_farm: Farm, request: pytest.FixtureRequest) -> Everything:
    """Real inputs for every target, compiled once; all of them if a slow test uses them."""
    users = [i for i in request.session.items if "everything" in getattr(i, "fixturenames", ())]
    is_whole = any(item.get_closest_marker("slow") for item in users)
    return compile_everything(vendor_farm.endpoint, is_whole=is_whole)


@pytest.fixture
def endpoint(endpoint: str, fresh_backend: None) -> str:
    """The endpoint of the shared farm for the CPU; models compile anew."""
    return endpoint


@pytest.fixture
def vendor_endpoint(vendor_endpoint: str, fresh_backend: None) -> str:
    """The endpoint of the shared farm for every vendor; models compile anew."""
    return vendor_endpoint
