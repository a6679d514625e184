"""The pods of a rendered chart in a form that `podman play kube` runs: one Pod for each Deployment.

podman has no Services, so each pod has a fixed address, and the names of Services are host aliases.
It would publish the ports of containers on the host, so they are left out. It would share volumes
of one name among pods, so their names begin with that of the pod.
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


def farm_pods(rendered: str, subnet: str) -> list[FarmPod]:
    """The pods of all Deployments, in the order in which they start.

    `subnet` is the first three numbers of the pods' addresses.
    """
    documents = [document for document in yaml.safe_load_all(rendered) if document]
    deployments = sorted(
        (document for document in documents if document["kind"] == "Deployment"),
        key=lambda document: _ORDER.index(_component(document).partition("-")[0]),
    )
    hosts = {
        document["metadata"]["name"]: f"{subnet}.{_FIRST_HOST + index}"
        for index, document in enumerate(deployments)
    }
    return [
        _pod(d["metadata"]["name"], d["spec"]["template"], hosts[d["metadata"]["name"]], hosts)
        for d in deployments
    ]


def test_pod(rendered: str, pods: list[FarmPod], subnet: str) -> FarmPod:
    """The pod of `helm test`."""
    documents = (document for document in yaml.safe_load_all(rendered) if document)
    (found,) = (document for document in documents if document["kind"] == "Pod")
    hosts = {pod.name: pod.address for pod in pods}
    return _pod(found["metadata"]["name"], found, f"{subnet}.{_FIRST_HOST + len(pods)}", hosts)


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


def _pod(name: str, template: Document, address: str, hosts: dict[str, str]) -> FarmPod:
    spec = {
        **template["spec"],
        "containers": [_container(name, container) for container in template["spec"]["containers"]],
        "volumes": [_of_pod(name, volume) for volume in template["spec"]["volumes"]],
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


def _container(pod: str, container: Document) -> Document:
    mounts = [_of_pod(pod, mount) for mount in container["volumeMounts"]]
    kept = {key: value for key, value in container.items() if key != "ports"}
    return {**kept, "volumeMounts": mounts}


def _of_pod(pod: str, named: Document) -> Document:
    return {**named, "name": f"{pod}-{named['name']}"}


def _component(document: Document) -> str:
    return str(document["metadata"]["labels"]["app.kubernetes.io/component"])
