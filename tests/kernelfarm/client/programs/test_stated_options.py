"""The options of `torch.compile` that are a part of the request and of its key."""

from __future__ import annotations

import pytest

from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.programs.stated_options import (
    check_fits_packages,
    compile_options,
    is_tuned,
    stated_settings,
)
from kernelfarm.errors import CallerError
from kernelfarm.ir.product_choice import ProductChoice


def test_who_computes_products_is_a_part_of_the_key_unless_it_is_the_default() -> None:
    by_default = compile_options({})
    assert compile_options({"products": "auto"}) == by_default
    own, library = (compile_options({"products": name}) for name in ("own", "library"))
    assert own.products is ProductChoice.OWN
    assert own.pairs() == (*by_default.pairs(), ("products", "own"))
    assert len({by_default.pairs(), own.pairs(), library.pairs()}) == 3
    assert CompileOptions().pairs() == by_default.pairs()


@pytest.mark.parametrize("value", ["mine", "", None, ["own"], True])
def test_another_choice_of_products_is_refused(value: object) -> None:
    with pytest.raises(CallerError, match="expected one of auto, library, own, tuned"):
        compile_options({"products": value})


def test_it_is_no_setting() -> None:
    assert stated_settings({"products": "own"}) == {}


def test_what_the_fleet_chooses_is_added_to_the_key_later() -> None:
    assert compile_options({"products": "tuned"}) == compile_options({})
    assert is_tuned({"products": "tuned"})
    assert not is_tuned({"products": "auto"}) and not is_tuned({})


def test_packages_hold_no_programs_that_the_fleet_chooses() -> None:
    check_fits_packages({"products": "own"}, "none")
    with pytest.raises(CallerError, match=r"'tuned': a package cannot hold .* or no packages"):
        check_fits_packages({"products": "tuned"}, "no packages")
