"""Each target of this machine's kind of processor, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.codegen_cpu.compiled import run_targets


@pytest.fixture(scope="module", params=run_targets())
def each_cpu_target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Kernels that state no target are made for this one."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KERNELFARM_HOST_TARGET", request.param)
        yield request.param
