"""Processes without a farm: programs on their disk run, others run eager or are an error."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.client.disk.tier import read_entry
from tests.support.farm import TIMEOUT_S, Farm, running_farm, wait_until
from tests.support.tampering_proxy import TamperingFarm
from tests.support.torch_children import run_python

RUN = """
import json, sys, warnings
import torch
from kernelfarm.client import counters
torch.manual_seed(0)
x = torch.randn(5, 7)
models = {"kept": lambda a: (a * 1.875).sin().sum(0), "new": lambda a: (a * 2.875).cos().sum(1),
          "newer": lambda a: (a * 3.875).cos().sum(1)}
results = {}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for name in sys.argv[2:]:
        torch._dynamo.reset()
        fast = torch.compile(models[name], backend="kernelfarm", mode=sys.argv[1])
        try:
            torch.testing.assert_close(fast(x), models[name](x))
            results[name] = fast(x).tolist()
        except torch._dynamo.exc.BackendCompilerFailed as error:
            results[name] = str(error.inner_exception)
warned = [str(w.message) for w in said if "kernelfarm" in str(w.message)]
print(json.dumps({"results": results, "warned": warned, "counted": counters.snapshot()}))
"""


def process(environment: Mapping[str, str], mode: str, *models: str) -> dict[str, Any]:
    """The output of a new process that runs models, and compares each result with eager."""
    arguments = ("-c", RUN, mode, *models)
    done = run_python(arguments, {**os.environ, **environment}, timeout_s=2 * TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, "")
    reported: dict[str, Any] = json.loads(done.stdout)
    return reported


# slow: in every run, test_warming.py starts a client from its disk, without a farm.
@pytest.mark.slow
def test_a_process_runs_what_is_on_disk_after_the_farm_ended(farm: Farm, tmp_path: Path) -> None:
    """The farm of this process is a proxy, which ends."""
    proxy = TamperingFarm(farm.endpoint)
    endpoint = proxy.start()
    environment = client_of(endpoint, tmp_path)
    warm = process(environment, "strict", "kept")
    proxy.stop()
    offline = process(environment, "wait", "kept", "new", "newer")
    assert offline["results"]["kept"] == warm["results"]["kept"]
    assert offline["counted"]["disk.hits"] == 1
    (warning,) = offline["warned"]  # for two models that are not on disk
    assert f"no farm answers at {endpoint}, so graphs run eager" in warning
    strict = process(environment, "strict", "kept", "new")
    assert strict["results"]["kept"] == warm["results"]["kept"]
    assert endpoint in strict["results"]["new"] and strict["warned"] == []


@pytest.mark.slow
def test_a_process_refuses_what_is_on_disk_once_its_manifest_expired(tmp_path: Path) -> None:
    with running_farm(tmp_path / "farm", KERNELFARM_OFFLINE_VALIDITY_S="20") as farm:
        environment = client_of(farm.endpoint, tmp_path)
        process(environment, "strict", "kept")
        assert farm.stop() == 0
    (path,) = tmp_path.glob("disk/programs/*/*/*/*.json")
    ends_s = read_entry(path).manifest.not_after_s
    wait_until(lambda: time.time() > ends_s, TIMEOUT_S, "the manifest to expire")
    for mode in ("wait", "strict"):
        refused = process(environment, mode, "kept")
        assert refused["counted"]["refused.disk.expired_manifest"] >= 1
        assert "disk.hits" not in refused["counted"]
        (said,) = refused["warned"] if mode == "wait" else [refused["results"]["kept"]]
        assert farm.endpoint in said and "on disk:" in said
    assert path.exists()  # a farm that serves again may confirm it


def client_of(endpoint: str, folder: Path) -> dict[str, str]:
    return {"KERNELFARM_ENDPOINT": endpoint, "KERNELFARM_DISK_CACHE_DIR": str(folder / "disk")}
