"""What a client and the command line import: nothing of services, pages or the farm's processes."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.farm import TIMEOUT_S, Farm
from tests.support.torch_children import run_python

UNNEEDED = """
import sys
def check(before=frozenset()):
    packages = {"celery", "jinja2", "markupsafe", "opentelemetry", "prometheus_client", "redis"}
    packages |= {"frontend_svc", "kernelfarm.pages", "kernelfarm.cache", "kernelfarm.supervisor"}
    found = sorted(packages & (sys.modules.keys() - before))
    assert not found, found
"""

STARTED = """
import kernelfarm.client.farm.client
from kernelfarm.cli import make_app
make_app()
check()
assert "torch" not in sys.modules
"""

COMPILED = """
import torch
before = frozenset(sys.modules)  # PyTorch may import some of them
model = torch.compile(lambda a: torch.relu(a + 0.125).sum(0), backend="kernelfarm", mode="strict")
model(torch.ones(3, 24))
assert "kernelfarm.client.torch_backend" in sys.modules
check(before)
"""


def test_the_client_and_the_command_line_start_without_unneeded_packages() -> None:
    program = UNNEEDED + STARTED
    subprocess.run([sys.executable, "-c", program], check=True, timeout=TIMEOUT_S)


def test_compiling_a_model_imports_no_unneeded_packages(farm: Farm) -> None:
    environment = {**os.environ, "KERNELFARM_ENDPOINT": farm.endpoint}
    environment["KERNELFARM_DISK_CACHE_BYTES"] = "0"
    done = run_python(("-c", UNNEEDED + COMPILED), environment)
    assert done.returncode == 0, done.stderr[-3000:]
