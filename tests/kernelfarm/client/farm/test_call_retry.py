"""Programs whose blobs the farm's cache has lost are asked for again."""

from __future__ import annotations

import pytest

from kernelfarm.client.farm import call_retry
from kernelfarm.client.farm.call_retry import repeated_while_lost
from kernelfarm.errors import NotFoundError, UnavailableError


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s = tuple(pause_s / 100 for pause_s in call_retry._LOST_PAUSES_S)
    monkeypatch.setattr(call_retry, "_LOST_PAUSES_S", pauses_s)


class Farm:
    """Has lost a blob when it is first asked, `lost` times."""

    def __init__(self, lost: int) -> None:
        self.lost = lost
        self.asked = 0

    def ask(self) -> str:
        """A program."""
        self.asked += 1
        if self.asked <= self.lost:
            raise NotFoundError("no blob")
        return "program"


def test_a_program_is_asked_for_until_its_blobs_are_there() -> None:
    farm = Farm(lost=2)
    assert repeated_while_lost(farm.ask) == "program"
    assert farm.asked == 3


def test_a_cache_that_keeps_losing_blobs_is_reported_as_unavailable() -> None:
    farm = Farm(lost=100)
    with pytest.raises(UnavailableError, match="keeps losing"):
        repeated_while_lost(farm.ask)
    assert farm.asked == 5
