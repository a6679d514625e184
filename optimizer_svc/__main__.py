"""`python -m optimizer_svc`: the optimizer's service."""

import sys

from kernelfarm.service.priority import yield_to_frontends
from kernelfarm.service.process import run_service
from optimizer_svc.service import serve_optimizer
from optimizer_svc.settings import OptimizerSettings

yield_to_frontends()
sys.exit(run_service("optimizer", OptimizerSettings, serve_optimizer))
