"""Networks that lose everything between two parts, for a while."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from tests.chaos.farm_under_test import Ground
from tests.chaos.fault import Fault, Scene, Undo

_SHORT_S = 3.0
_LONG_S = 10.0


def network_faults() -> Iterator[Fault]:
    """Each part cut off, for a short and a long time; only where parts are apart."""
    for part in ("clients", "broker", "cache", "farm"):
        for seconds in (_SHORT_S, _LONG_S):
            begin = functools.partial(_cut, part=part)
            name = f"network: {part} cut off for {seconds:.0f} s"
            yield Fault(name, begin, seconds, can_happen=_is_apart)
    both = functools.partial(_cut_both, parts=("broker", "cache"))
    yield Fault("network: both servers cut off for 10 s", both, _LONG_S, can_happen=_is_apart)


def _is_apart(ground: Ground) -> bool:
    return ground.switch is not None


def _cut(scene: Scene, part: str) -> Undo:
    return _cut_both(scene, (part,))


def _cut_both(scene: Scene, parts: tuple[str, ...]) -> Undo:
    switch = scene.ground.switch
    assert switch is not None
    scene.keep_workers_busy()
    for part in parts:
        switch.cut(part)

    def plug_in() -> None:
        for part in parts:
            switch.heal(part)

    return plug_in
