"""`kernelfarm up --frontends 2`, whatever the environment says about gateways and the page."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.support.calls import compile_at
from tests.support.farm import TIMEOUT_S, running_farm
from tests.support.small_graphs import h_request

pytestmark = pytest.mark.slow  # it starts a farm; a test of the layout runs by default


@pytest.mark.parametrize(("option", "setting"), [(2, "2"), (0, "2"), (1, "3")])
def test_a_farm_has_the_frontends_that_it_was_asked_for(
    option: int, setting: str, tmp_path: Path
) -> None:
    environment = {
        "KERNELFARM_FRONTEND_PROCESSES": setting,
        "KERNELFARM_PAGE_LISTEN": "127.0.0.1:0",
    }
    with running_farm(tmp_path / "farm", frontends=option, **environment) as farm:
        assert compile_at(farm.endpoint, h_request()).program.artifacts
        names = list(farm.children("frontend"))
        assert len(names) == (option or int(setting))
        pages = [line for name in names for line in farm.log(name).splitlines() if "page_" in line]
        (serving,) = (line for line in map(json.loads, pages) if line["event"] == "page_listening")
        assert f'"{serving["address"]}"' in farm.log(names[0])
        with urllib.request.urlopen(f"http://{serving['address']}/", timeout=TIMEOUT_S) as page:
            assert page.status == 200
        assert farm.stop() == 0
