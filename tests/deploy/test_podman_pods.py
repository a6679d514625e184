"""The pods of `make images-test` are those of the chart."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.support.chart import CHART, environment, helm
from tools import podman_pods
from tools.images import IMAGES

FILES = Path("/files")


def test_every_deployment_becomes_a_pod_that_finds_the_others() -> None:
    values = CHART / "values/minimal.yaml"
    rendered = helm("template", "kf", CHART, "-f", values).stdout
    pods = podman_pods.farm_pods(rendered, "10.99.0", FILES)
    deployments = [d for d in yaml.safe_load_all(rendered) if d and d["kind"] == "Deployment"]
    assert {pod.name for pod in pods} == {d["metadata"]["name"] for d in deployments}
    assert len({pod.address for pod in pods}) == len(pods)
    assert [pod.component for pod in pods][:2] in (["broker", "cache"], ["cache", "broker"])
    for pod in [*pods, *podman_pods.clients_of(rendered, pods, "10.99.0", FILES)]:
        hosts = {
            name for alias in pod.document["spec"]["hostAliases"] for name in alias["hostnames"]
        }
        (container,) = pod.document["spec"]["containers"]
        assert "ports" not in container  # podman would publish them
        for value in environment(container).values():
            if "kf-kernelfarm-" in value:
                assert value.removeprefix("redis://").partition(":")[0] in hosts
    volumes = [volume["name"] for pod in pods for volume in pod.document["spec"]["volumes"]]
    assert len(volumes) == len(set(volumes)) == len(pods)  # podman shares those of one name
    probes = {pod.component: podman_pods.probe_of(pod) for pod in pods}
    assert probes["cache"] == ["valkey-cli", "ping"]
    assert probes["optimizer"][-2:] == ["127.0.0.1:50052", "--public"]
    assert "serving" in probes["worker-cpu"]


def test_secrets_config_maps_and_claims_become_folders(tmp_path: Path) -> None:
    values = ("-f", CHART / "values/production.yaml", "--set", "warming.jobs[0].schedule=")
    rendered = helm("template", "kf", CHART, *values).stdout
    _, warming = podman_pods.clients_of(rendered, [], "10.99.0", tmp_path)
    podman_pods.write_config_maps(rendered, tmp_path)
    volumes = {
        volume["name"].removeprefix(f"{warming.name}-"): volume.get("hostPath", {}).get("path")
        for volume in warming.document["spec"]["volumes"]
    }
    assert volumes["tmp"] is None
    assert volumes["warming"] == str(tmp_path / podman_pods.CLAIMS / "kernelfarm-warming")
    assert volumes["trace-key"] == str(tmp_path / podman_pods.SECRETS / "kernelfarm-traces-key")
    assert "models:" in Path(volumes["manifest"], "manifest.yaml").read_text()


def test_every_image_of_the_chart_is_built() -> None:
    rendered = helm("template", "kf", CHART, "--set", "signing.mode=off").stdout
    used = {
        container["image"].rpartition("/")[2].partition(":")[0]
        for document in yaml.safe_load_all(rendered)
        if document and document["kind"] == "Deployment"
        for container in document["spec"]["template"]["spec"]["containers"]
    }
    assert used - set(IMAGES) == {"valkey"}
