"""Every variable that a service reads."""

from __future__ import annotations

from pathlib import Path

from codegen_svc.backends.ascend.settings import AscendSettings
from codegen_svc.settings import CodegenSettings, WorkerSettings
from frontend_svc.settings import FrontendSettings
from kernelfarm.supervisor.settings import SupervisorSettings
from optimizer_svc.settings import OptimizerSettings

ROOT = Path(__file__).parents[2]

SETTINGS = (
    AscendSettings,
    CodegenSettings,
    FrontendSettings,
    OptimizerSettings,
    SupervisorSettings,
    WorkerSettings,
)

VARIABLES = {f"KERNELFARM_{name.upper()}" for kind in SETTINGS for name in kind.model_fields}
