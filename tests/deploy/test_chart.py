"""The Helm chart: what it renders is valid for each Kubernetes version, secure, and consistent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from codegen_svc.backends.ascend.settings import AscendSettings
from codegen_svc.settings import CodegenSettings, WorkerSettings
from frontend_svc.settings import FrontendSettings
from kernelfarm.client.settings import ClientSettings
from kernelfarm.service.settings import ServiceSettings, load_settings
from optimizer_svc.settings import OptimizerSettings
from tests.support.chart import (
    CHART,
    VALUES,
    VERSIONS,
    Document,
    environment,
    helm,
    pod_templates,
    render,
    selects,
    strict_validator,
)
from tests.support.known_variables import ROOT
from tools.settings_page import fields_of

# Kinds of operators that a cluster may have; `test_kinds_of_operators_...` checks their fields.
OPERATOR_KINDS = {"PrometheusRule", "ScaledObject", "ServiceMonitor"}

SETTINGS: dict[str, tuple[type[Any], ...]] = {
    "frontend": (FrontendSettings,),
    "optimizer": (OptimizerSettings,),
    "codegen": (CodegenSettings,),
    "worker": (WorkerSettings, AscendSettings),
    "self-test": (ClientSettings,),
    "warm": (ClientSettings,),
}
GIB = 2**30


@pytest.fixture(scope="module", params=VALUES, ids=lambda path: path.stem)
def documents(request: pytest.FixtureRequest) -> list[Document]:
    """What the chart renders with one of its files of values."""
    return render("-f", request.param)


# slow: all but one; in every run, all of them are rendered and each document is validated.
LINTED = [
    pytest.param(path, marks=[pytest.mark.slow] if n else []) for n, path in enumerate(VALUES)
]


@pytest.mark.parametrize("values", LINTED, ids=lambda path: path.stem)
def test_helm_lints_the_chart_strictly(values: Path) -> None:
    linted = helm("lint", "--strict", CHART, "-f", values)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_documents_are_valid_for_each_kubernetes(documents: list[Document], version: str) -> None:
    assert faults(documents, version) == []


def faults(documents: list[Document], version: str) -> list[str]:
    found = []
    for document in documents:
        kind = document["kind"]
        validator = strict_validator(version, kind, document["apiVersion"])
        if validator is None:
            found += [] if kind in OPERATOR_KINDS else [f"{kind}: not in Kubernetes {version}"]
        else:
            name = document["metadata"]["name"]
            found += [
                f"{kind}/{name}: {fault.message}" for fault in validator.iter_errors(document)
            ]
    return found


def test_a_field_that_kubernetes_does_not_know_is_found(documents: list[Document]) -> None:
    (frontend,) = (d for d in documents if is_deployment_of(d, "frontend"))
    misspelt = {**frontend, "spec": {**frontend["spec"], "replica": 2}}
    assert "replica" in faults([misspelt], VERSIONS[0])[0]


def is_deployment_of(document: Document, component: str) -> bool:
    return document["kind"] == "Deployment" and component_of(document) == component


def component_of(document: Document) -> str:
    return document["metadata"]["labels"]["app.kubernetes.io/component"]


def test_no_two_documents_have_one_name(documents: list[Document]) -> None:
    names = [(d["kind"], d["metadata"]["name"]) for d in documents]
    assert len(names) == len(set(names))
    assert all(len(name) <= 63 for _, name in names)
    assert {d["metadata"]["namespace"] for d in documents} == {"farms"}


def test_every_container_is_confined(documents: list[Document]) -> None:
    pods = list(pod_templates(documents))
    assert len(pods) >= 6
    for name, pod in pods:
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume], name
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] and security["runAsNonRoot"], name
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}, name
            assert container["resources"]["limits"]["memory"], name


def test_every_pod_that_serves_is_probed_and_drains(documents: list[Document]) -> None:
    for document in documents:
        if document["kind"] != "Deployment":
            continue
        spec = document["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
        values = environment(container)
        if container["name"] == "worker":
            command = container["livenessProbe"]["exec"]["command"]
            assert values["KERNELFARM_WORKER_HEARTBEAT_FILE"] in command
            assert "stuck" not in command and "serving" in command
            needed_s = float(values["KERNELFARM_JOB_TIME_LIMIT_S"]) + 15  # Celery's hard limit
        elif "KERNELFARM_DRAIN_GRACE_S" in values:
            needed_s = 5 + 2 * float(values["KERNELFARM_DRAIN_GRACE_S"]) + 10
        else:
            continue
        assert spec["terminationGracePeriodSeconds"] >= needed_s


def test_probes_are_native_unless_the_listener_has_tls(documents: list[Document]) -> None:
    for document in documents:
        service = component_of(document)
        if document["kind"] == "Deployment" and service in ("frontend", "optimizer", "codegen"):
            (container,) = document["spec"]["template"]["spec"]["containers"]
            tls = (
                "KERNELFARM_TLS_CERT_FILE"
                if service == "frontend"
                else "KERNELFARM_INTERNAL_CA_FILE"
            )
            expected = "exec" if tls in environment(container) else "grpc"
            assert expected in container["livenessProbe"]
            (port,) = (p for p in container["ports"] if p["name"] == "grpc")
            assert str(port["containerPort"]) in str(container["livenessProbe"][expected])


def test_every_variable_is_a_setting_of_its_service(
    documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, pod in pod_templates(documents):
        for container in pod["spec"]["containers"]:
            given = environment(container)
            kinds = SETTINGS.get(container["name"], ())
            known = {f"KERNELFARM_{field.upper()}" for kind in kinds for field in fields_of(kind)}
            ours = {variable for variable in given if variable.startswith("KERNELFARM_")}
            assert ours - known == set(), name
            if kinds and issubclass(kinds[0], ServiceSettings):
                with monkeypatch.context() as patched:
                    for variable in ours:
                        patched.setenv(variable, given[variable])
                    load_settings(kinds[0])


def test_every_selector_selects_a_pod(documents: list[Document]) -> None:
    pods = [pod["metadata"]["labels"] for _, pod in pod_templates(documents)]
    services = [d for d in documents if d["kind"] == "Service"]
    for document in documents:
        spec = document.get("spec", {})
        match document["kind"]:
            case "Service":
                assert any(selects(spec["selector"], pod) for pod in pods), document["metadata"]
            case "Deployment" | "PodDisruptionBudget":
                selector = spec["selector"]["matchLabels"]
                assert sum(selects(selector, pod) for pod in pods) == 1, document["metadata"]
            case "NetworkPolicy":
                selector = spec["podSelector"]["matchLabels"]
                assert any(selects(selector, pod) for pod in pods), document["metadata"]
            case "ServiceMonitor":
                selector = spec["selector"]["matchLabels"]
                assert any(selects(selector, service["metadata"]["labels"]) for service in services)
            case "HorizontalPodAutoscaler" | "ScaledObject":
                target = spec["scaleTargetRef"]["name"]
                (scaled,) = (
                    d
                    for d in documents
                    if d["kind"] == "Deployment" and d["metadata"]["name"] == target
                )
                assert "replicas" not in scaled["spec"]  # the autoscaler decides


def test_each_policy_allows_what_the_settings_name_and_nothing_else(
    documents: list[Document],
) -> None:
    policies = [d["spec"] for d in documents if d["kind"] == "NetworkPolicy"]
    services = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "Service"}
    pods = {name: pod["metadata"]["labels"] for name, pod in pod_templates(documents)}
    for name, pod in pod_templates(documents):
        called = set()
        for container in pod["spec"]["containers"]:
            for value in environment(container).values():
                address = re.search(r"^(?:redis://)?([\w.-]+):(\d+)(?:/\d+)?$", value)
                if address is None or address[1] not in services:
                    continue
                service = services[address[1]]
                assert int(address[2]) in {port["port"] for port in service["ports"]}, value
                called |= {n for n, labels in pods.items() if selects(service["selector"], labels)}
        labels = pod["metadata"]["labels"]
        allowed = {
            other
            for other, its_labels in pods.items()
            if allows(policies, "Egress", labels, its_labels)
            and allows(policies, "Ingress", its_labels, labels)
        }
        assert allowed == called, name


def allows(
    policies: list[Document], direction: str, own: dict[str, str], other: dict[str, str]
) -> bool:
    """Whether the policies of a pod let it call another, or be called by it."""
    chosen = [p for p in policies if selects(p["podSelector"]["matchLabels"], own)]
    assert len(chosen) == 1 and chosen[0]["policyTypes"] == ["Ingress", "Egress"]
    peers = "to" if direction == "Egress" else "from"
    for rule in chosen[0][direction.lower()]:
        if peers not in rule:  # everyone
            return True
        for peer in rule[peers]:
            labels = peer.get("podSelector", {}).get("matchLabels", {})
            if "namespaceSelector" not in peer and selects(labels, other):
                return True
    return False


def test_pods_without_servers_to_call_cannot_ask_the_name_server(documents: list[Document]) -> None:
    for document in documents:
        if document["kind"] == "NetworkPolicy" and component_of(document) in ("optimizer", "cache"):
            assert document["spec"]["egress"] == []


def test_a_worker_has_room_for_its_compilations(documents: list[Document]) -> None:
    for _, pod in pod_templates(documents):
        (container,) = pod["spec"]["containers"]
        if container["name"] == "worker":
            concurrency = int(container["command"][-1])
            memory = int(environment(container)["KERNELFARM_SANDBOX_MEMORY_BYTES"])
            limit = container["resources"]["limits"]["memory"]
            assert int(limit.removesuffix("Gi")) * GIB >= concurrency * memory + GIB // 2


def test_each_private_key_reaches_only_its_own_service() -> None:
    rendered = render("-f", CHART / "values/production.yaml")
    holders: dict[str, set[str]] = {}
    for _, pod in pod_templates(rendered):
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for volume in pod["spec"]["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440
                holders.setdefault(volume["secret"]["secretName"], set()).add(component)
    workers = {f"worker-{vendor}" for vendor in ("cpu", "cuda", "rocm", "ascend")}
    assert holders["kernelfarm-programs-key"] == {"frontend"}
    assert holders["kernelfarm-kernels-key"] == workers
    assert holders["kernelfarm-traces-key"] == {"warming"}
    assert holders["kernelfarm-tenants"] == {"frontend"}
    assert holders["kernelfarm-optimizer-tls"] == {"optimizer"}


def test_a_change_of_secrets_restarts_pods() -> None:
    values = ("-f", CHART / "values/minimal.yaml")
    first, second = (
        [pod["metadata"].get("annotations") for _, pod in pod_templates(rendered)]
        for rendered in (render(*values), render(*values, "--set-string", "secretsRevision=2"))
    )
    changed = [a != b for a, b in zip(first, second, strict=True) if a and "checksum/secrets" in a]
    assert all(changed) and len(changed) == 5  # all but the servers and the test


def test_a_new_vendor_is_one_block_of_values(tmp_path: Path) -> None:
    worker = {"vendor": "acme", "image": "registry.example/acme/worker:1", "concurrency": 3}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"workers": [worker]}))
    rendered = render("-f", CHART / "values/minimal.yaml", "-f", values)
    assert faults(rendered, VERSIONS[-1]) == []
    (added,) = (d for d in rendered if is_deployment_of(d, "worker-acme"))
    (container,) = added["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/acme/worker:1"
    assert container["command"][-4:] == ["--queue", "acme", "--concurrency", "3"]
    kinds = {d["kind"] for d in rendered if component_of(d) == "worker-acme"}
    assert kinds >= {"Deployment", "PodDisruptionBudget", "NetworkPolicy", "Service"}
    (test,) = (d for d in rendered if d["kind"] == "Pod")
    assert test["spec"]["containers"][0]["command"][-2:] == ["--vendor", "acme"]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("frontend.replica=2", "Additional property replica is not allowed"),
        ("workers[0].vendor=X Y", "Does not match pattern"),
        ("signing.mode=required", "make keys with `kernelfarm keys`"),
        ("cache.bundled=false", "cache.external.urlSecret is empty"),
        ("optimizer.autoscaling.type=keda", "optimizer scales by `cpu`"),
        ("frontend.mtls.enabled=true", "tls.public.clientCaSecret"),
        ("farm.drainGraceSeconds=-1", "Must be greater than or equal to 0"),
    ],
)
def test_wrong_values_are_refused_with_their_name(flag: str, message: str) -> None:
    refused = helm("template", "kf", CHART, "-f", CHART / "values/minimal.yaml", "--set", flag)
    assert refused.returncode != 0
    assert message in refused.stderr


def test_every_default_is_in_the_schema_and_every_value_has_a_default() -> None:
    """The schema refuses unknown names; a name without a default would be one that nobody finds."""
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(defaults)
    for name, default in defaults.items():
        stated = schema["properties"][name]
        stated = (
            schema["definitions"][stated["$ref"].rpartition("/")[2]] if "$ref" in stated else stated
        )
        if "properties" in stated:
            assert set(stated["properties"]) == set(default), name
            assert stated["additionalProperties"] is False


def test_dashboards_and_rules_are_those_of_the_repository() -> None:
    for folder, kind in (("grafana", "ConfigMap"), ("prometheus", "PrometheusRule")):
        assert (CHART / "files" / folder).resolve() == ROOT / "deploy" / folder
        files = [
            path
            for path in (ROOT / "deploy" / folder).iterdir()
            if path.suffix == ".json"
            or (path.suffix == ".yaml" and "groups" in yaml.safe_load(path.read_text()))
        ]
        rendered = render("-f", CHART / "values/production.yaml")
        named = {d["metadata"]["name"] for d in rendered if d["kind"] == kind}
        assert {f"kf-kernelfarm-{path.stem}" for path in files} <= named


def test_kinds_of_operators_have_only_known_fields() -> None:
    rendered = render("-f", CHART / "values/production.yaml")
    monitors = [d["spec"] for d in rendered if d["kind"] == "ServiceMonitor"]
    for monitor in monitors:
        assert set(monitor) == {"selector", "namespaceSelector", "targetLabels", "endpoints"}
        known = {"port", "path", "interval", "relabelings", "scheme", "tlsConfig"}
        assert set(monitor["endpoints"][0]) <= known
    labels = [d["metadata"]["labels"] for d in rendered if d["kind"] == "Service"]
    watched = [
        sum(selects(m["selector"]["matchLabels"], service) for service in labels) for m in monitors
    ]
    assert watched == [4, 3]  # the workers; by TLS the services
    scaled = [d["spec"] for d in rendered if d["kind"] == "ScaledObject"]
    assert len(scaled) == 3
    for spec in scaled:
        assert set(spec) == {
            *("scaleTargetRef", "minReplicaCount", "maxReplicaCount"),
            *("pollingInterval", "cooldownPeriod", "fallback", "triggers"),
        }
        (trigger,) = spec["triggers"]
        assert set(trigger["metadata"]) == {"serverAddress", "query", "threshold"}
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        assert re.search(
            r'jobs\{vendor="(cpu|cuda|rocm)",namespace="farms"\}', trigger["metadata"]["query"]
        )
    for rule in (d["spec"] for d in rendered if d["kind"] == "PrometheusRule"):
        assert set(rule) == {"groups"}


def test_a_job_has_a_new_name_for_a_new_manifest_or_image() -> None:
    def job(*flags: str) -> str:
        values = ("-f", CHART / "values/production.yaml", "--set", "warming.jobs[0].schedule=")
        manifest = ("--set", "warming.jobs[0].manifest=models: []")
        rendered = render(*values, *manifest, *(part for f in flags for part in ("--set", f)))
        (name,) = (d["metadata"]["name"] for d in rendered if d["kind"] == "Job")
        return name

    assert job() == job()
    assert len({job(), job("warming.image=x:2"), job("warming.jobs[0].manifest=models")}) == 3
