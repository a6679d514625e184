"""Processes without a farm, and what their disk gives them: real ones, of a farm that has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.client.disk.tier import read_entry
from tests.support.farm import TIMEOUT_S, running_farm, wait_until

RUN = """
import json, sys, warnings
import torch
from kernelfarm.client import counters
torch.manual_seed(0)
x = torch.randn(5, 7)
models = {"kept": lambda a: (a * 1.875).sin().sum(0), "new": lambda a: (a * 2.875).cos().sum(1),
          "newer": lambda a: (a * 3.875).cos().sum(1)}
told = {}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for name in sys.argv[2:]:
        torch._dynamo.reset()
        fast = torch.compile(models[name], backend="kernelfarm", mode=sys.argv[1])
        try:
            torch.testing.assert_close(fast(x), models[name](x))
            told[name] = fast(x).tolist()
        except torch._dynamo.exc.BackendCompilerFailed as error:
            told[name] = str(error.inner_exception)
warned = [str(w.message) for w in said if "kernelfarm" in str(w.message)]
print(json.dumps({"results": told, "warned": warned, "counted": counters.snapshot()}))
"""


def process(environment: Mapping[str, str], mode: str, *models: str) -> dict[str, Any]:
    """What a fresh process tells that runs models; each also gives eager's numbers."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, mode, *models],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=True,
    )
    assert done.stderr == ""
    reported: dict[str, Any] = json.loads(done.stdout)
    return reported


def test_a_process_runs_what_is_on_disk_after_the_farm_ended(tmp_path: Path) -> None:
    with running_farm(tmp_path / "farm") as farm:
        environment = client_of(farm.endpoint, tmp_path)
        warm = process(environment, "strict", "kept")
        assert farm.stop() == 0
    offline = process(environment, "wait", "kept", "new", "newer")
    assert offline["results"]["kept"] == warm["results"]["kept"]
    assert offline["counted"]["disk.hits"] == 1
    (warning,) = offline["warned"]  # of two models that are not there
    assert f"no farm answers at {farm.endpoint}, so graphs run eager" in warning
    strict = process(environment, "strict", "kept", "new")
    assert strict["results"]["kept"] == warm["results"]["kept"]
    assert farm.endpoint in strict["results"]["new"] and strict["warned"] == []


@pytest.mark.slow
def test_a_process_refuses_what_is_on_disk_once_its_manifest_ended(tmp_path: Path) -> None:
    with running_farm(tmp_path / "farm", KERNELFARM_OFFLINE_VALIDITY_S="20") as farm:
        environment = client_of(farm.endpoint, tmp_path)
        process(environment, "strict", "kept")
        assert farm.stop() == 0
    (path,) = tmp_path.glob("disk/programs/*/*/*/*.json")
    ends_s = read_entry(path).manifest.not_after_s
    wait_until(lambda: time.time() > ends_s, TIMEOUT_S, "the end of the manifest")
    for mode in ("wait", "strict"):
        refused = process(environment, mode, "kept")
        assert refused["counted"]["refused.disk.expired_manifest"] >= 1
        assert "disk.hits" not in refused["counted"]
        (said,) = refused["warned"] if mode == "wait" else [refused["results"]["kept"]]
        assert farm.endpoint in said and "on disk:" in said
    assert path.exists()  # a farm that answers again may vouch for it


def client_of(endpoint: str, folder: Path) -> dict[str, str]:
    return {"KERNELFARM_ENDPOINT": endpoint, "KERNELFARM_DISK_CACHE_DIR": str(folder / "disk")}
