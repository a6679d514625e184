"""`python -m frontend_svc`: the public service."""

import sys

from frontend_svc.service import serve_frontend
from frontend_svc.settings import FrontendSettings
from kernelfarm.service.process import run_service

sys.exit(run_service("frontend", FrontendSettings, serve_frontend))
