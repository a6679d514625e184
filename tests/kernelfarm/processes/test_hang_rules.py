"""When a child counts as hung."""

from __future__ import annotations

from kernelfarm.processes.hang_rules import HangDetector, WatchTimes


def probed(detector: HangDetector, *probes: tuple[bool, float]) -> list[bool]:
    """The results of a detector for instant probes, each an answer and the pause before it."""
    said, now_s = [], 0.0
    for is_alive, slept_s in probes:
        now_s += slept_s
        ends = detector.hangs(is_alive=is_alive, slept_s=slept_s, began_s=now_s, ended_s=now_s)
        said.append(ends)
    return said


def test_a_child_hangs_if_probes_fail_for_long_enough_and_this_process_ran() -> None:
    times = WatchTimes(every_s=2, probe_s=5, hung_s=10, start_s=60)
    detector = HangDetector(times)
    detector.sees(1, has_served=True)
    fails = (False, 2.0)
    assert probed(detector, *[fails] * 6) == [False] * 5 + [True]
    detector.sees(2, has_served=True)
    assert not any(probed(detector, *[fails] * 4, (True, 2.0), *[fails] * 4))
    detector.sees(3, has_served=True)
    assert not any(probed(detector, *[fails] * 4, (False, 60.0), *[fails] * 4)), "we slept, too"
    detector.sees(4, has_served=False)
    assert not any(probed(detector, *[fails] * 20)), "it may still start"
