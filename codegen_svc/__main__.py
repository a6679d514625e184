"""`python -m codegen_svc`: the code generators' edge."""

import sys

from codegen_svc.service import serve_codegen
from codegen_svc.settings import CodegenSettings
from kernelfarm.service.priority import yield_to_frontends
from kernelfarm.service.process import run_service

yield_to_frontends()
sys.exit(run_service("codegen", CodegenSettings, serve_codegen))
