"""Fixtures of the client: settings that point at the farm, and a backend that knows nothing.

They import torch only when they are used: most tests of services need none.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.farm import Farm


@pytest.fixture
def fresh_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test compiles anew and may be warned again."""
    import torch  # noqa: PLC0415

    from kernelfarm.client.programs import eager  # noqa: PLC0415
    from kernelfarm.client.runtime import arena  # noqa: PLC0415
    from tests.support.client_timeouts import be_patient  # noqa: PLC0415

    torch._dynamo.reset()
    eager.reset_warnings()
    be_patient(monkeypatch)
    yield
    arena.release()


@pytest.fixture
def endpoint(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> str:
    """The shared farm's endpoint, also in the environment."""
    monkeypatch.setenv("KERNELFARM_ENDPOINT", farm.endpoint)
    return farm.endpoint
