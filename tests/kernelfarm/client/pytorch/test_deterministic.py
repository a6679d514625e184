"""The framework's flag for deterministic kernels is set around calls, and restored after them."""

from __future__ import annotations

import threading

import pytest
import torch

from kernelfarm.client.programs.stated_options import compile_options
from kernelfarm.client.pytorch.deterministic import (
    _Flag,
    boxed_with_deterministic_kernels,
    is_determinism_wanted,
    with_deterministic_kernels,
)
from tests.support.farm import TIMEOUT_S

pytestmark = pytest.mark.usefixtures("flag_off_again")

OFF, WARNING, ON = (False, False), (True, True), (True, False)


def flag() -> tuple[bool, bool]:
    """Whether kernels are deterministic, and whether others only warn."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def test_the_flag_is_set_for_a_call_alone() -> None:
    nested = with_deterministic_kernels(with_deterministic_kernels(flag))
    assert (nested(), flag()) == (ON, OFF)
    assert boxed_with_deterministic_kernels(lambda args: [flag(), *args])([1]) == [ON, 1]


def test_the_flag_is_restored_after_an_error() -> None:
    # PyTorch has no deterministic kernel for this operator.
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        with_deterministic_kernels(torch.ops.aten.put.default)(
            torch.zeros(4), torch.tensor([0, 0]), torch.ones(2)
        )
    assert flag() == OFF


def test_a_flag_of_the_user_stays_as_it_is() -> None:
    run = with_deterministic_kernels(flag)
    for stated in (WARNING, ON):
        torch.use_deterministic_algorithms(stated[0], warn_only=stated[1])
        assert (run(), flag(), is_determinism_wanted()) == (stated, stated, True)
    torch.use_deterministic_algorithms(False, warn_only=True)
    assert (run(), flag()) == (ON, (False, True))


def test_the_flag_stays_set_until_the_last_thread_has_ended_its_call() -> None:
    is_inside, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        is_inside.set()
        assert may_end.wait(TIMEOUT_S)

    other = threading.Thread(target=with_deterministic_kernels(wait))
    other.start()
    assert is_inside.wait(TIMEOUT_S)
    assert flag() == ON and not is_determinism_wanted()
    assert with_deterministic_kernels(flag)() == ON
    assert flag() == ON
    may_end.set()
    other.join(TIMEOUT_S)
    assert flag() == OFF


def test_a_forked_child_has_the_flag_of_the_user() -> None:
    held = _Flag()
    assert held.hold()
    held.renew()
    assert flag() == OFF
    held.release()  # a call in which the process forked ends in the child, too
    assert flag() == OFF and held.hold()
    held.release()
    assert flag() == OFF


@pytest.mark.parametrize("stated", [OFF, WARNING, ON])
def test_programs_are_deterministic_by_default_if_the_flag_is_set(
    stated: tuple[bool, bool],
) -> None:
    torch.use_deterministic_algorithms(stated[0], warn_only=stated[1])
    assert compile_options({}).is_deterministic == stated[0]
    assert compile_options({"deterministic": True}).is_deterministic
    assert not compile_options({"deterministic": False}).is_deterministic
    keys = {compile_options({"deterministic": value}).pairs() for value in (False, True)}
    assert len(keys) == 2 and compile_options({}).pairs() in keys
