"""Networks that lose all packets to and from a process group, for a while."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from tests.chaos.farm_under_test import FarmUnderTest
from tests.chaos.fault import Fault, FaultContext, Undo

_SHORT_S = 3.0
_LONG_S = 10.0


def network_faults() -> Iterator[Fault]:
    """Each namespace disconnected, for a short and a long time; only in the layout `apart`."""
    for part in ("clients", "broker", "cache", "farm"):
        for seconds in (_SHORT_S, _LONG_S):
            begin = functools.partial(_cut, part=part)
            name = f"network: {part} cut off for {seconds:.0f} s"
            yield Fault(name, begin, seconds, can_happen=_is_apart)
    both = functools.partial(_cut_both, parts=("broker", "cache"))
    yield Fault("network: both servers cut off for 10 s", both, _LONG_S, can_happen=_is_apart)


def _is_apart(farm: FarmUnderTest) -> bool:
    return farm.switch is not None


def _cut(context: FaultContext, part: str) -> Undo:
    return _cut_both(context, (part,))


def _cut_both(context: FaultContext, parts: tuple[str, ...]) -> Undo:
    switch = context.farm.switch
    assert switch is not None
    context.keep_workers_busy()
    for part in parts:
        switch.cut(part)

    def reconnect() -> None:
        for part in parts:
            switch.connect(part)

    return reconnect
