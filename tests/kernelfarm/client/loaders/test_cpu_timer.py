"""The timer of this machine's processor."""

from __future__ import annotations

import time

import torch

from kernelfarm.client.loaders.cpu_timer import CpuTimer


def test_it_measures_launches_without_what_prepares_them() -> None:
    order: list[str] = []

    def launch() -> None:
        order.append("launch")
        time.sleep(0.02)

    def prepare() -> None:
        order.append("prepare")
        time.sleep(0.2)

    times_ms = CpuTimer().times_ms(launch, prepare, 2)
    assert order == ["prepare", "launch"] * 2
    assert all(time_ms >= 20 for time_ms in times_ms) and min(times_ms) < 200


def test_its_device_states_what_changes_times() -> None:
    timer = CpuTimer()
    assert timer.obstacle() == ""
    stated = timer.device()
    assert f"{torch.get_num_threads()} threads" in stated and torch.__version__ in stated
    assert 1 <= len(stated) <= 200
