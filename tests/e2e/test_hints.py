"""Hints for operations of a model, through a whole farm: artifacts, report, explanations."""

from __future__ import annotations

import torch

import kernelfarm
from kernelfarm.client.compile_model import CompiledModel
from kernelfarm.client.diagnostics.stages import of_key
from tests.support.farm import Farm

_TARGETS = ("cuda:sm_90a", "rocm:gfx942")


class _Model(torch.nn.Module):
    """A softmax of long rows, with hints or without."""

    def __init__(self, hints: str) -> None:
        super().__init__()
        self.hints = hints

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.hints:
            return torch.softmax(x, -1)
        with kernelfarm.hints(self.hints):
            return torch.softmax(x, -1)


def _compiled(farm: Farm, hints: str) -> CompiledModel:
    x = torch.ones(256, 196608)  # rows too long to be held, and enough that none is divided
    return kernelfarm.compile(_Model(hints), (x,), targets=list(_TARGETS), endpoint=farm.endpoint)


def _explained(farm: Farm, compiled: CompiledModel, target: str) -> dict[str, str]:
    """The stages of a target's program and of its kernel's general variant, by name."""
    key = compiled.programs[target].key
    stages = of_key(key, farm.endpoint)
    return {found.stage: found.text() for found in stages if not found.variant}


def test_each_vendor_follows_what_it_knows_and_explain_says_so(vendor_farm: Farm) -> None:
    compiled = _compiled(vendor_farm, "async=3, waves_per_eu=2")
    plain = _compiled(vendor_farm, "")

    nvidia, amd = (_explained(vendor_farm, compiled, target) for target in _TARGETS)
    assert "hint 0 async=3\n" in nvidia["aten"]
    assert "hint async=3\n" in nvidia["loops"]
    assert "hint async=3 of aten._softmax (0): kernel fused_" in nvidia["report"]
    assert "hint waves_per_eu=2 of aten._softmax (0) is ignored: cuda:sm_90a" in nvidia["report"]
    assert nvidia["notes"] == "hint async=3: applied"
    assert "cp.async" in nvidia["ptx"]
    assert amd["notes"] == "hint waves_per_eu=2: applied"
    assert '"amdgpu-waves-per-eu"="2' in amd["llir"]

    for target in _TARGETS:
        assert compiled.programs[target].key != plain.programs[target].key
        stages = _explained(vendor_farm, plain, target)
        assert "notes" not in stages
        assert "hint" not in stages["report"]
        assert "cp.async" not in stages.get("ptx", "")


def test_a_kernel_for_ascend_has_the_buffers_that_a_hint_asks_for(vendor_farm: Farm) -> None:
    texts = {}
    for hints in ("", "multibuffer=1"):
        model, x = _Model(hints), torch.ones(256, 32768)
        target = "ascend:910b"
        compiled = kernelfarm.compile(model, (x,), targets=[target], endpoint=vendor_farm.endpoint)
        texts[hints] = _explained(vendor_farm, compiled, target)

    assert "hivm.multi_buffer = 2" in texts[""]["linalg"]
    assert '"scope.scope"' in texts[""]["scopes"]
    hinted = texts["multibuffer=1"]
    assert "hivm.multi_buffer" not in hinted["linalg"]
    assert hinted["notes"] == "hint multibuffer=1: applied"
    assert "hint multibuffer=1 of aten._softmax (0): kernel fused_" in hinted["report"]
