"""The Helm chart, rendered, and Kubernetes' own schemas for what it renders."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.support.known_variables import ROOT

Document = dict[str, Any]

CHART = ROOT / "deploy/helm/kernelfarm"
VALUES = tuple(sorted((CHART / "values").glob("*.yaml")))
HELM = Path(sys.executable).with_name("helm")
VERSIONS = tuple(f"1.{minor}" for minor in range(29, 38))

# libyaml is ten times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    """What Helm answers; it fails with a status, not with an exception."""
    command = [str(HELM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def render(*flags: object, release: str = "kf", namespace: str = "farms") -> list[Document]:
    """The documents that the chart renders with these flags (`-f FILE`, `--set ...`)."""
    rendered = helm("template", release, CHART, "-n", namespace, *flags)
    assert rendered.returncode == 0, rendered.stderr
    return [document for document in yaml.load_all(rendered.stdout, _Loader) if document]


@lru_cache(maxsize=16)
def strict_registry(version: str) -> Registry:
    """The definitions of a Kubernetes version, in which unknown fields are errors."""
    definitions = json.loads((_schemas(version) / "_definitions.json").read_text())
    return Resource.from_contents(definitions) @ Registry()


@lru_cache(maxsize=512)
def strict_validator(version: str, kind: str, api_version: str) -> Draft202012Validator | None:
    """The validator of a kind; None if the version does not know it."""
    group, _, name = api_version.rpartition("/")
    prefix = f"{group.partition('.')[0]}-{name}" if group else name
    path = _schemas(version) / f"{kind.lower()}-{prefix}.json"
    if not path.is_file():
        return None
    return Draft202012Validator(json.loads(path.read_text()), registry=strict_registry(version))


def _schemas(version: str) -> Path:
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema"
    (found,) = Path(str(folder)).glob(f"v{version}*-local-strict")
    return found


def pod_templates(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    """Each pod or template of pods, with the name of its document: metadata and spec."""
    for document in documents:
        name = f"{document['kind']}/{document['metadata']['name']}"
        match document["kind"]:
            case "Pod":
                yield name, document
            case "Deployment" | "Job":
                yield name, document["spec"]["template"]
            case "CronJob":
                yield name, document["spec"]["jobTemplate"]["spec"]["template"]


def environment(container: Document) -> dict[str, str]:
    """The variables of a container; those from Secrets have the Secret's name and key."""
    found = {}
    for variable in container.get("env", []):
        reference = variable.get("valueFrom", {}).get("secretKeyRef", {})
        given = f"secret:{reference.get('name')}/{reference.get('key')}"
        found[variable["name"]] = variable.get("value", given)
    return found


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a selector of labels (a non-empty one) selects an object with these labels."""
    return bool(selector) and selector.items() <= labels.items()
