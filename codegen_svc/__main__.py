"""`python -m codegen_svc`: starts the edge, the gRPC server of the code generators."""

import sys

from codegen_svc.edge.service import serve_codegen
from codegen_svc.settings import CodegenSettings
from kernelfarm.service.priority import yield_to_frontends
from kernelfarm.service.process import run_service

yield_to_frontends()
sys.exit(run_service("codegen", CodegenSettings, serve_codegen))
