"""`python -m frontend_svc`: the public service."""

import sys

from frontend_svc.gateways import serve_gateways
from frontend_svc.serve import serve_frontend
from frontend_svc.settings import FrontendSettings
from kernelfarm.service.process import run_service


async def serve(settings: FrontendSettings) -> None:
    """Serves as one gateway, or as several."""
    if settings.frontend_processes > 1:
        await serve_gateways(settings)
    else:
        await serve_frontend(settings)


sys.exit(run_service("frontend", FrontendSettings, serve))
