"""A real Prometheus that scrapes a farm, with the alert rules of `deploy` and shorter times."""

from __future__ import annotations

import json
import math
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kernelfarm.errors import KernelfarmError
from kernelfarm.processes.ports import free_ports
from tests.support.farm import TIMEOUT_S, Farm, wait_until
from tests.support.prometheus_rules import RULES

ALERT_S = 90
ADDED_TARGETS = "added.json"


@dataclass(frozen=True)
class Prometheus:
    """A server that scrapes a farm; its configuration is in `folder`."""

    address: str
    folder: Path

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an expression now."""
        return self._get("query", query=expression)["result"]

    def numbers(self, expression: str) -> list[float]:
        """The present values of an expression's series that are numbers."""
        values = [float(series["value"][1]) for series in self.query(expression)]
        return [value for value in values if not math.isnan(value)]

    def values_of_label(self, label: str, series: str) -> list[str]:
        """The values of a label of a series."""
        return self._get(f"label/{label}/values", **{"match[]": series})

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {
            alert["labels"]["alertname"]
            for alert in self._get("alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def wait_for(self, *names: str) -> None:
        """Returns when all these alerts fire; fails if they do not."""
        wait_until(lambda: self.firing().issuperset(names), ALERT_S, f"{names} fire")

    def repeat_until(self, work: Callable[[], object], *names: str) -> None:
        """Repeats calls of the farm, whose errors the fault causes, until these alerts fire."""
        self.wait_without(*names)

        def fires() -> bool:
            with suppress(KernelfarmError):
                work()
            return self.firing().issuperset(names)

        wait_until(fires, ALERT_S, f"{names} fire", every_s=0.2)

    def wait_without(self, *names: str) -> None:
        """Returns when none of these alerts fires: what an earlier fault caused is over."""
        wait_until(lambda: self.firing().isdisjoint(names), ALERT_S, f"{names} end")

    def scrape_also(self, job: str, address: str) -> None:
        """Scrapes one more process, from some seconds later on."""
        targets = [{"targets": [address], "labels": {"job": job}}]
        (self.folder / ADDED_TARGETS).write_text(json.dumps(targets))

    def _get(self, name: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        url = f"http://{self.address}/api/v1/{name}?{query}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            return json.load(response)["data"]


@contextmanager
def running_prometheus(folder: Path, farm: Farm) -> Iterator[Prometheus]:
    """A Prometheus on loopback that scrapes each process of a farm every two seconds.

    A scrape may take as long: a frontend waits a second for a cache that does not answer.
    """
    folder.mkdir()
    (folder / "alerts.yaml").write_text(quick_rules(RULES.read_text()))
    jobs = [
        _scraped(f"kernelfarm-{name}", static_configs=[{"targets": [child["metrics"]]}])
        for name, child in farm.status()["children"].items()
        if child["metrics"]
    ]
    added = {"files": [str(folder / ADDED_TARGETS)], "refresh_interval": "1s"}
    configuration = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [*jobs, _scraped("added", file_sd_configs=[added])],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    prometheus = Prometheus(f"127.0.0.1:{free_ports(1)[0]}", folder)
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={prometheus.address}",
        "--log.level=warn",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_until(lambda: _answers(prometheus), TIMEOUT_S, "Prometheus answers")
            yield prometheus
        finally:
            process.kill()


def quick_rules(rules: str) -> str:
    """The rules with windows of seconds, that fire at once; no other number is changed."""
    rules = re.sub(r"(?m)^ +for: \w+\n", "", rules)
    rules = re.sub(r"\[\d+m\]", "[15s]", rules).replace("offset 10m", "offset 15s")
    return rules.replace("> 60", "> 5")  # the age of a queue, s


def _scraped(job: str, **targets: Sequence[object]) -> dict[str, object]:
    return {"job_name": job, **targets}


def _answers(prometheus: Prometheus) -> bool:
    with suppress(OSError):
        return prometheus.query("up") != []
    return False
