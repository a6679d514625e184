"""The pods of a rendered chart in a form that `podman play kube` runs.

podman has no Services, so each pod has a fixed address, and the names of Services are host aliases.
It would publish the ports of containers on the host, so they are left out. It would share volumes
of one name among pods, so their names begin with that of the pod. Secrets, ConfigMaps and claims
become folders of this machine: FILES/KIND/NAME.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

# What others need starts first.
_ORDER = ("cache", "broker", "optimizer", "codegen", "worker", "frontend")
_FIRST_HOST = 10
# Volumes by their kind: the field that has the name.
_NAMED_BY = {"secret": "secretName", "configMap": "name", "persistentVolumeClaim": "claimName"}
CLAIMS, CONFIG_MAPS, SECRETS = "persistentVolumeClaim", "configMap", "secret"


@dataclass(frozen=True, slots=True)
class FarmPod:
    """A pod with its address; `document` is what podman plays."""

    name: str
    component: str
    address: str
    document: Document

    @property
    def container(self) -> str:
        """The name that podman gives to the pod's only container."""
        (container,) = self.document["spec"]["containers"]
        return f"{self.name}-{container['name']}"

    @property
    def grace_s(self) -> int:
        """The time that the pod has to end, seconds."""
        return int(self.document["spec"].get("terminationGracePeriodSeconds", 30))


def farm_pods(rendered: str, subnet: str, files: Path) -> list[FarmPod]:
    """The pods of all Deployments, in the order in which they start.

    `subnet` is the first three numbers of the pods' addresses.
    """
    deployments = sorted(
        _of_kind(rendered, "Deployment"),
        key=lambda document: _ORDER.index(_component(document).partition("-")[0]),
    )
    hosts = {
        document["metadata"]["name"]: f"{subnet}.{_FIRST_HOST + index}"
        for index, document in enumerate(deployments)
    }
    return [
        _pod(name, d["spec"]["template"], hosts[name], hosts, files)
        for d, name in ((d, d["metadata"]["name"]) for d in deployments)
    ]


def clients_of(rendered: str, pods: list[FarmPod], subnet: str, files: Path) -> list[FarmPod]:
    """The pod of `helm test`, and that of each Job."""
    hosts = {pod.name: pod.address for pod in pods}
    templates = [(d["metadata"]["name"], d) for d in _of_kind(rendered, "Pod")]
    templates += [(d["metadata"]["name"], d["spec"]["template"]) for d in _of_kind(rendered, "Job")]
    return [
        _pod(name, template, f"{subnet}.{_FIRST_HOST + len(pods) + index}", hosts, files)
        for index, (name, template) in enumerate(templates)
    ]


def write_config_maps(rendered: str, files: Path) -> None:
    """Writes the ConfigMaps, one folder each."""
    for document in _of_kind(rendered, "ConfigMap"):
        folder = files / CONFIG_MAPS / document["metadata"]["name"]
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in document["data"].items():
            (folder / name).write_text(text)


def probe_of(pod: FarmPod) -> list[str]:
    """The pod's readiness probe as a command for its container."""
    (container,) = pod.document["spec"]["containers"]
    probe = container["readinessProbe"]
    if "exec" in probe:
        return [str(word) for word in probe["exec"]["command"]]
    address = f"127.0.0.1:{probe['grpc']['port']}"
    return ["python", "-m", "kernelfarm.service.probes", address, "--public"]


def write_pod(pod: FarmPod, folder: Path) -> Path:
    """The file of a pod, for `podman play kube`: without probes, which the caller runs."""
    document = yaml.safe_load(yaml.safe_dump(pod.document))
    for container in document["spec"]["containers"]:
        for name in ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle"):
            container.pop(name, None)
    file = folder / f"{pod.name}.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def _of_kind(rendered: str, kind: str) -> list[Document]:
    return [d for d in yaml.safe_load_all(rendered) if d and d["kind"] == kind]


def _pod(
    name: str, template: Document, address: str, hosts: dict[str, str], files: Path
) -> FarmPod:
    volumes = [_of_files(volume, files) for volume in template["spec"]["volumes"]]
    spec = {
        **template["spec"],
        "containers": [_container(name, container) for container in template["spec"]["containers"]],
        "volumes": [_of_pod(name, volume) for volume in volumes],
        "hostAliases": [{"ip": ip, "hostnames": [host]} for host, ip in hosts.items()],
    }
    labels = template["metadata"]["labels"]
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }
    return FarmPod(name, _component(template), address, document)


def _of_files(volume: Document, files: Path) -> Document:
    """The volume, from a folder of this machine if it is a Secret, a ConfigMap or a claim."""
    for kind, field in _NAMED_BY.items():
        if kind in volume:
            path = files / kind / volume[kind][field]
            return {"name": volume["name"], "hostPath": {"path": str(path), "type": "Directory"}}
    return volume


def _container(pod: str, container: Document) -> Document:
    mounts = [_of_pod(pod, mount) for mount in container["volumeMounts"]]
    kept = {key: value for key, value in container.items() if key != "ports"}
    return {**kept, "volumeMounts": mounts}


def _of_pod(pod: str, named: Document) -> Document:
    return {**named, "name": f"{pod}-{named['name']}"}


def _component(document: Document) -> str:
    return str(document["metadata"]["labels"]["app.kubernetes.io/component"])
