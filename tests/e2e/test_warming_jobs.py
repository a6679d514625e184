"""A job for eight models and four vendors that is killed and started again, and its bundle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.client.warming.certificate import read_certificate
from kernelfarm.signing.key_files import PUBLIC_KEYS, TRACE_KEY
from tests.support.farm import TIMEOUT_S, Farm, running_farm
from tests.support.source_code import ROOT

pytestmark = pytest.mark.slow  # eight models for four vendors take minutes

NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there
MODELS = ("bert", "albert", "opt", "llama", "vit", "resnet", "unet", "lstm")
TARGETS = ("cpu:x86-64-v3", "cuda:sm_90a", "rocm:gfx942", "ascend:910b")
RUN = """
import json, sys, warnings
import torch
from kernelfarm.client import counters
from tests.support.warmed_models import zoo
started = {}
for name in sys.argv[1:]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    counters.reset()
    model, args = zoo(name)
    with torch.no_grad():
        found = torch.compile(model, backend="kernelfarm", mode="strict")(*args)
        torch.testing.assert_close(found, model(*args), rtol=2e-3, atol=2e-3)
    seen = {k: v for k, v in counters.snapshot().items() if v}
    long = torch._dynamo.utils.counters["aot_autograd"]["total"]
    started[name] = {**seen, "traced": long + seen.get("traced.short", 0)}
print(json.dumps(started))
"""


def test_a_killed_job_continues_and_its_bundle_starts_each_model_without_a_farm(
    tmp_path: Path,
) -> None:
    write_manifest(tmp_path / "m.yaml")
    with running_farm(tmp_path / "farm", ",".join(t.partition(":")[0] for t in TARGETS)) as farm:
        environment = job_environment(farm)
        kill_in_the_middle(farm, tmp_path, environment)
        in_the_middle = kernel_counters(farm)
        done = run(tmp_path, environment, "warm", "m.yaml")
        assert done.returncode == 0, done.stderr
        assert "capture of an earlier run" in done.stderr
        certificate = read_certificate(tmp_path / "m.certificate.json").certificate
        assert certificate.is_complete
        assert len(certificate.entries) == len(MODELS) * len(TARGETS)
        kernels = {kernel for entry in certificate.entries for kernel in entry.kernels}
        counted = kernel_counters(farm)
        assert 0 < in_the_middle["jobs"] < counted["jobs"]
        assert counted["jobs"] == counted["published"] == len(kernels)
        coverage = run(tmp_path, environment, "verify-coverage", "m.certificate.json")
        assert coverage.returncode == 0, coverage.stdout
        command = ("export-bundle", "b.tar", "--certificate", "m.certificate.json")
        written = run(tmp_path, environment, *command)
        assert written.returncode == 0, written.stderr
        assert f"{len(certificate.entries)} programs, {len(MODELS)} traces" in written.stdout
        public = (farm.keys / PUBLIC_KEYS).read_bytes()
        assert farm.stop() == 0
    (tmp_path / "public.json").write_bytes(public)
    start_from_the_bundle(tmp_path)


def start_from_the_bundle(folder: Path) -> None:
    environment = {
        "KERNELFARM_ENDPOINT": NOBODY,
        "KERNELFARM_DISK_CACHE_DIR": str(folder / "disk"),
        "KERNELFARM_TRUSTED_KEYS_FILE": str(folder / "public.json"),
        "KERNELFARM_HOST_TARGET": TARGETS[0],
    }
    imported = run(folder, environment, "import-bundle", "b.tar", "--disk")
    assert imported.returncode == 0, imported.stdout + imported.stderr
    done = subprocess.run(
        [sys.executable, "-c", RUN, *MODELS],
        env=process_environment(environment),
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    started: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert started.keys() == set(MODELS)
    for name, seen in started.items():
        assert (seen["disk.hits"], seen["warm.disk.hits"], seen["traced"]) == (1, 1, 0), name


def write_manifest(path: Path) -> None:
    models = "".join(
        f"  - name: {name}\n    entry: tests.support.warmed_models:zoo\n"
        f"    arguments: {{name: {name}}}\n    tag: {name}@1\n"
        for name in MODELS
    )
    path.write_text(f"format: 1\ntargets: {json.dumps(TARGETS)}\nmodels:\n{models}")


def job_environment(farm: Farm) -> dict[str, str]:
    return {
        "KERNELFARM_ENDPOINT": farm.endpoint,
        "KERNELFARM_TRACE_KEY_FILE": str(farm.keys / TRACE_KEY),
        "KERNELFARM_TRUSTED_KEYS_FILE": str(farm.keys / PUBLIC_KEYS),
        "KERNELFARM_HOST_TARGET": TARGETS[0],
    }


def process_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", **environment}


def command_line(*command: str) -> list[str]:
    return [sys.executable, "-m", "kernelfarm.cli", *command]


def run(
    folder: Path, environment: Mapping[str, str], *command: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command_line(*command),
        cwd=folder,
        env=process_environment(environment),
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
        check=False,
    )


def kernel_counters(farm: Farm) -> dict[str, int]:
    with CacheAdmin(farm.endpoint) as admin:
        counters = admin.usage().spaces[1].counters
    return {"jobs": counters.get("jobs", 0), "published": counters.get("published", 0)}


def kill_in_the_middle(farm: Farm, folder: Path, environment: Mapping[str, str]) -> None:
    """Kills a job when some of its models are captured, and some of its kernels compiled."""
    job = subprocess.Popen(
        command_line("warm", "m.yaml"),
        cwd=folder,
        env=process_environment(environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ends_s = time.monotonic() + 5 * TIMEOUT_S
    while kernel_counters(farm)["published"] < 20 or captures(folder) < 3:
        assert job.poll() is None and time.monotonic() < ends_s, "the job ended too early"
        time.sleep(0.05)
    job.send_signal(signal.SIGKILL)
    job.wait()
    assert captures(folder) < len(MODELS)
    assert not (folder / "m.certificate.json").exists()


def captures(folder: Path) -> int:
    return len(list(folder.glob("m.captures/*.capture")))
