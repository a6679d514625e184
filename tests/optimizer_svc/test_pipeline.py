"""The order of the passes."""

from __future__ import annotations

import pytest

from kernelfarm.errors import InternalError
from optimizer_svc.pipeline import PASSES, check_order


def test_a_pass_before_its_input_exists_is_refused() -> None:
    with pytest.raises(InternalError, match=r"report-fusion needs 'attention'"):
        check_order((PASSES[-1], *PASSES[:-1]))
