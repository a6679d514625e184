"""The collector pauses, and works afterwards as before."""

from __future__ import annotations

import gc

import pytest

from kernelfarm.client.process.garbage_collection import no_collections


def test_the_collector_is_off_in_the_block_and_on_after_an_error() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError, match="here"), no_collections():
        assert not gc.isenabled()
        with no_collections():
            pass
        assert not gc.isenabled()  # the inner block did not begin the pause
        raise ValueError("here")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with no_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
