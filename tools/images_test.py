"""Builds every image, runs the chart's pods with podman, warms the farm and serves a model with it.

`make images-test` calls `python -m tools.images_test`. It needs root, a kernel with overlay and
bridges, Debian's packages of `PACKAGES`, and a network to Debian's and Python's package servers.
It needs no registry of images, no Docker and no cluster: debootstrap makes the base. Images and
configuration are below `--folder`, so those of the machine stay as they are. deploy/README.md says
what the test shows, and what only a cluster shows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from kernelfarm.client.loaders.host_target import host_cpu_target
from tools.images import (
    IMAGES,
    ROOT,
    VALKEY,
    WARMING,
    Engine,
    ImagesTestError,
    build_images,
    check_images,
    image_tag,
    report,
)
from tools.podman_pods import (
    CLAIMS,
    SECRETS,
    FarmPod,
    clients_of,
    farm_pods,
    probe_of,
    write_config_maps,
    write_pod,
)

PACKAGES = ("buildah", "catatonit", "debootstrap", "iptables", "podman", "runc")
KERNELFARM = (sys.executable, "-m", "kernelfarm.cli")
SUBNET = "10.99.0"
NETWORK = "kernelfarm-images-test"
CLAIM = "warming"
NAMESPACE = "default"

_READY_S = 120
_POD_GROUP = 10001
# `embedder` is the model of the example server, as it calls it.
_MANIFEST = """
format: 1
targets: ["TARGET", "cuda:sm_90a", "rocm:gfx942", "ascend:910b"]
models:
  - name: embedder
    entry: examples.warming_models:embedder
    grad: inference_mode
  - name: bert
    entry: examples.warming_models:zoo
    arguments: {name: bert}
    sizes: {batch: {min: 1, max: 64}}
    inputs: [[batch, 32], [batch, 32]]
"""


def run_farm(engine: Engine, values: Path, then: str) -> None:
    """Starts the chart's pods, runs the chart's test, warms the farm, serves a model, and stops.

    Every pod of the farm is stopped by SIGTERM.
    """
    files = engine.folder / "files"
    rendered = _render(engine, values, files)
    pods = farm_pods(rendered, SUBNET, files)
    self_test, warming = clients_of(rendered, pods, SUBNET, files)
    frontend = next(pod for pod in pods if pod.component == "frontend")
    client = {
        "KERNELFARM_ENDPOINT": f"{frontend.address}:50051",
        "KERNELFARM_TRUSTED_KEYS_FILE": str(files / SECRETS / "trusted-keys/public.json"),
        "KERNELFARM_DISK_CACHE_DIR": str(_emptied(files / "client-disk", group=0)),
    }
    _remove_all(engine)  # what a run left that was killed
    engine.run("podman", "network", "create", "--subnet", f"{SUBNET}.0/24", NETWORK)
    try:
        for pod in pods:
            began_s = time.monotonic()
            _play(engine, pod)
            _wait_ready(engine, pod)
            report(f"{pod.name} is ready after {time.monotonic() - began_s:.1f} s")
        _run_client(engine, self_test)
        _run_client(engine, warming)
        certificate = files / CLAIMS / CLAIM / "coverage.json"
        _run_here(client, *KERNELFARM, "verify-coverage", str(certificate))
        _run_here(client, sys.executable, "-m", "tools.inference_load")
        if then:
            _run_here(client, "/bin/sh", "-c", then)
        for pod in reversed(pods):
            _stop(engine, pod)
    except ImagesTestError:
        for pod in pods:
            logs = engine.run("podman", "logs", "--tail=5", pod.container, is_checked=False)
            print(f"--- {pod.name}\n{logs.stdout}{logs.stderr}", flush=True)
        raise
    finally:
        _remove_all(engine)


def _remove_all(engine: Engine) -> None:
    engine.run("podman", "pod", "rm", "-fa", is_checked=False)
    engine.run("podman", "volume", "rm", "-fa", is_checked=False)
    engine.run("podman", "network", "rm", "-f", NETWORK, is_checked=False)


def _render(engine: Engine, values: Path, files: Path) -> str:
    """The chart with a worker for each vendor, signatures and a warming job; writes their files."""
    vendors = [name.partition("-")[2] for name in IMAGES if name.startswith("worker-")]
    jobs = [
        {
            "name": "models",
            "claim": CLAIM,
            "manifest": _MANIFEST.replace("TARGET", host_cpu_target()),
        }
    ]
    secrets = {
        "programKeySecret": "programs.key",
        "kernelKeySecret": "kernels.key",
        "trustedKeysSecret": "public.json",
    }
    keys = _emptied(files / "keys", group=0)
    engine.run(*KERNELFARM, "keys", keys)
    for name in (*secrets.values(), "traces.key"):
        folder = _emptied(files / SECRETS / _secret_of(name), group=_POD_GROUP)
        shutil.copy(keys / name, folder)
        shutil.chown(folder / name, group=_POD_GROUP)
        (folder / name).chmod(0o440)
    _emptied(files / CLAIMS / CLAIM, group=_POD_GROUP)
    rendered = engine.run(
        *(Path(sys.executable).with_name("helm"), "template", "kf"),
        *(ROOT / "deploy/helm/kernelfarm", "-f", values),
        *("--set", f"valkey.image={VALKEY}", "--set", "image.tag=images-test"),
        *("--set-json", f"workers={json.dumps([{'vendor': vendor} for vendor in vendors])}"),
        *("--set", f"signing.mode=required,farm.name={NAMESPACE}"),
        *(f"--set=signing.{value}={_secret_of(file)}" for value, file in secrets.items()),
        *("--set", f"warming.traceKeySecret={_secret_of('traces.key')}"),
        *("--set", f"warming.image={image_tag(WARMING)}"),
        *("--set-json", f"warming.jobs={json.dumps(jobs)}"),
    ).stdout
    write_config_maps(rendered, files)
    return rendered


def _secret_of(file: str) -> str:
    return {"public.json": "trusted-keys"}.get(file, file.replace(".", "-"))


def _emptied(folder: Path, group: int) -> Path:
    """An empty folder that a group may write, as a volume with `fsGroup`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.chown(folder, group=group)
    folder.chmod(0o770)
    return folder


def _play(engine: Engine, pod: FarmPod) -> None:
    file = write_pod(pod, engine.folder)
    engine.run("podman", "play", "kube", "--network", NETWORK, "--ip", pod.address, file)


def _wait_ready(engine: Engine, pod: FarmPod) -> None:
    """Runs the pod's own readiness probe until it succeeds."""
    probe = probe_of(pod)
    ends_s = time.monotonic() + _READY_S
    while time.monotonic() < ends_s:
        if engine.run("podman", "exec", pod.container, *probe, is_checked=False).returncode == 0:
            return
        time.sleep(0.5)
    raise ImagesTestError(f"{pod.name} was not ready after {_READY_S} s: {' '.join(probe)}")


def _run_client(engine: Engine, pod: FarmPod) -> None:
    """Runs a pod that ends by itself, and prints its output."""
    report(pod.name)
    began_s = time.monotonic()
    _play(engine, pod)
    status = engine.run("podman", "wait", pod.container).stdout.split()[-1]
    logs = engine.run("podman", "logs", pod.container)
    print(logs.stdout + logs.stderr, end="", flush=True)
    if status != "0":
        raise ImagesTestError(f"{pod.name} ended with {status}")
    report(f"{pod.name} took {time.monotonic() - began_s:.1f} s")


def _run_here(settings: dict[str, str], *command: str) -> None:
    """Runs a client of this machine."""
    report(" ".join(command))
    environment = {**os.environ, **settings}
    status = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
    if status != 0:
        raise ImagesTestError(f"{' '.join(command)} ended with {status}")


def _stop(engine: Engine, pod: FarmPod) -> None:
    """Stops a pod as a kubelet does; it must end by itself, with status 0."""
    began_s = time.monotonic()
    engine.run("podman", "stop", "-t", pod.grace_s, pod.container)
    took_s = time.monotonic() - began_s
    inspected = engine.run("podman", "inspect", "--format", "{{.State.ExitCode}}", pod.container)
    if inspected.stdout.strip() != "0":
        raise ImagesTestError(
            f"{pod.name} ended with {inspected.stdout.strip()} after {took_s:.1f} s; expected 0"
            f" within its grace of {pod.grace_s} s"
        )
    report(f"{pod.name} ended within {took_s:.1f} s")


def _check_machine() -> None:
    missing = [package for package in PACKAGES if shutil.which(package) is None]
    if os.getuid() != 0:
        raise ImagesTestError("buildah's chroot isolation and podman's networks need root here")
    if missing:
        raise ImagesTestError(
            f"missing: apt-get install --no-install-recommends {' '.join(missing)}"
        )


def main(argv: list[str]) -> int:
    """Returns 0 if everything worked, else 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tools.images_test", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/kernelfarm-images-test"))
    parser.add_argument(
        "--values", type=Path, default=ROOT / "deploy/helm/kernelfarm/values/minimal.yaml"
    )
    parser.add_argument("--skip-build", action="store_true", help="the images exist already")
    parser.add_argument(
        "--then", default="", help="a command of this machine to run against the farm"
    )
    arguments = parser.parse_args(argv)
    engine = Engine(arguments.folder.resolve())
    try:
        _check_machine()
        engine.configure()
        if not arguments.skip_build:
            build_images(engine)
        check_images(engine)
        run_farm(engine, arguments.values, arguments.then)
    except ImagesTestError as error:
        sys.stderr.write(f"images-test: {error}\n")
        return 1
    report("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
