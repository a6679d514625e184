"""Hints by name as options of a compilation by Triton, and the options that artifacts record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codegen_svc.backends.triton_passes import SHOW_PASSES
from kernelfarm.ir.hints import FLAT_GROUP, SCHEDULES

PINGPONG = "use_block_pingpong"
"""The setting of loops in which one group of warps loads while the other multiplies."""
_SETTINGS = {
    "async_copy": "use_async_copy",
    "block_pingpong": PINGPONG,
    "buffer_ops": "use_buffer_ops",
    "passes": SHOW_PASSES,
}
_GROUP_ATTRIBUTE = "amdgpu-flat-work-group-size"
_SCHEDULE_ATTRIBUTE = "amdgpu-sched-strategy"
_PINGPONG_MARKS = ("rocdl.s.setprio", "rocdl.sched.barrier")


def given_options(stated: Mapping[str, int]) -> dict[str, Any]:
    """The options of `compile_triton` that hints state; of several schedules the last counts."""
    options: dict[str, Any] = {}
    attributes: dict[str, str] = {}
    for name, value in sorted(stated.items()):
        if name in _SETTINGS:
            options[_SETTINGS[name]] = bool(value)
        elif name == "cu_mode":
            options["wgp_cu_mode"] = "cu" if value else "wgp"
        elif name == FLAT_GROUP:
            attributes[_GROUP_ATTRIBUTE] = f"1,{value}"
        elif name in SCHEDULES:
            attributes |= {_SCHEDULE_ATTRIBUTE: SCHEDULES[name]} if value else {}
        else:
            options[name] = value
    if attributes:
        options["llvm_fn_attrs"] = tuple(sorted(attributes.items()))
    return options


def pingpong_problem(ttgir: str) -> str:
    """Why a kernel has no ping-pong loop although it was asked for; empty if it has one."""
    if not any(mark in ttgir for mark in _PINGPONG_MARKS):
        return "Triton makes such loops of other tiles, numbers of warps and stages"
    return ""


def amd_options(facts: Mapping[str, Any], group_size: int) -> str:
    """The options of a compilation for AMD as text, by the names of hints.

    `group_size` is the most work items of a group, as the code object states it.
    """
    schedule = dict(facts["llvm_fn_attrs"]).get(_SCHEDULE_ATTRIBUTE, "default")
    names = {setting: name for name, setting in _SETTINGS.items()}
    found = {names[setting]: int(value) for setting, value in facts["settings"].items()}
    found |= {name: facts[name] for name in ("kpack", "matrix_instr_nonkdim", "waves_per_eu")}
    found |= {FLAT_GROUP: group_size, "num_stages": facts["num_stages"]}
    texts = [f"{name}={value}" for name, value in sorted(found.items())]
    denormals = "flushed" if facts["allow_flush_denorm"] else "kept"
    texts += [f"denormals {denormals}", f"schedule {schedule}", f"mode {facts['wgp_cu_mode']}"]
    return ", ".join(texts)
