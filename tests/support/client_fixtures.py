"""Fixtures of the client: settings that point at a farm, and a backend without earlier state.

They import torch only when a test uses them: most tests of services do without it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.farm import Farm


@pytest.fixture
def fresh_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test compiles anew, and warnings that were shown once are shown again."""
    import torch  # noqa: PLC0415

    from kernelfarm.client.programs import eager  # noqa: PLC0415
    from kernelfarm.client.runtime import arena  # noqa: PLC0415
    from tests.support.client_timeouts import set_watch_timeout  # noqa: PLC0415

    torch._dynamo.reset()
    eager.reset_warnings()
    set_watch_timeout(monkeypatch)
    yield
    arena.release()


@pytest.fixture
def flag_off_again() -> Iterator[None]:
    """The test may call `torch.use_deterministic_algorithms`."""
    import torch  # noqa: PLC0415

    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def prompt_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that a missing farm does not answer is repeated as often as ever, without pauses."""
    from kernelfarm.client.farm import call_retry  # noqa: PLC0415

    monkeypatch.setattr(call_retry, "_PAUSES_S", tuple(0.0 for _ in call_retry._PAUSES_S))


@pytest.fixture
def endpoint(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> str:
    """The endpoint of the shared farm for the CPU, which clients of the test use."""
    monkeypatch.setenv("KERNELFARM_ENDPOINT", farm.endpoint)
    return farm.endpoint


@pytest.fixture
def vendor_endpoint(vendor_farm: Farm, monkeypatch: pytest.MonkeyPatch) -> str:
    """The endpoint of the shared farm for every vendor, which clients of the test use."""
    monkeypatch.setenv("KERNELFARM_ENDPOINT", vendor_farm.endpoint)
    return vendor_farm.endpoint
