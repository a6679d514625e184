"""The number of a request's targets is checked before they are compared."""

from __future__ import annotations

import pytest

from frontend_svc.flow.targets import MAX_TARGETS, check_targets
from kernelfarm.errors import CallerError, MalformedMessageError


def test_many_targets_are_refused_before_they_are_compared() -> None:
    """At commit 3c2bd51 the time grew with the square of their number."""
    with pytest.raises(CallerError, match=f"1000000 targets; expected at most {MAX_TARGETS}"):
        check_targets(tuple(map(str, range(1_000_000))))
    with pytest.raises(MalformedMessageError, match="a target of 1000 characters"):
        check_targets(("x" * 1000,))
