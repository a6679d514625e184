"""Builds every image, runs the chart's pods with podman, and compiles with them.

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
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tools.podman_pods import FarmPod, farm_pods, probe_of, test_pod, write_pod

ROOT = Path(__file__).parents[1]
PACKAGES = ("buildah", "catatonit", "debootstrap", "iptables", "podman", "runc")
DEBIAN = "docker.io/library/debian:bookworm-slim"
PYTHON = "docker.io/library/python:3.11-slim-bookworm"
VALKEY = "localhost/kernelfarm/valkey:test"
SUBNET = "10.99.0"
NETWORK = "kernelfarm-images-test"
IMAGES = (
    *("frontend", "optimizer", "codegen"),
    *("worker-cpu", "worker-cuda", "worker-rocm", "worker-ascend", "all"),
)

_READY_S = 120
_CERTIFICATES = "/etc/ssl/certs"

_PYTHON_BASE = f"""
FROM {DEBIAN}
RUN apt-get update \\
    && apt-get install -y --no-install-recommends \\
       ca-certificates python3 python3-pip python3-venv \\
    && ln -s python3 /usr/bin/python && rm -rf /var/lib/apt/lists/*
"""
_VALKEY_SERVER = f"""
FROM {DEBIAN}
RUN apt-get update \\
    && apt-get install -y --no-install-recommends redis-server \\
    && ln -s redis-server /usr/bin/valkey-server && ln -s redis-cli /usr/bin/valkey-cli
"""


class ImagesTestError(Exception):
    """A step failed; the message says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Engine:
    """buildah and podman, with storage and configuration of their own."""

    folder: Path

    def configure(self) -> None:
        """Writes the configuration files."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        (self.folder / "networks").mkdir(parents=True, exist_ok=True)
        (self.folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/storage"\n'
            f'runroot = "{self.folder}/run"\n'
        )
        # The defaults need systemd, cgroups of version 2, and more files than are allowed.
        (self.folder / "containers.conf").write_text(
            f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=32768:32768"]\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            '[network]\nnetwork_backend = "netavark"\n'
            f'network_config_dir = "{self.folder}/networks"\n'
        )

    def run(
        self, *command: object, text_in: str | None = None, is_checked: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """What a command answers.

        Raises:
            ImagesTestError: it failed, and `is_checked`.
        """
        environment = {
            **os.environ,
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }
        words = [str(word) for word in command]
        ended = subprocess.run(
            words, env=environment, input=text_in, capture_output=True, text=True, check=False
        )
        if is_checked and ended.returncode != 0:
            shown = "\n".join((ended.stdout + ended.stderr).splitlines()[-20:])
            raise ImagesTestError(f"{' '.join(words)} failed with {ended.returncode}:\n{shown}")
        return ended

    def has(self, image: str) -> bool:
        """True if the image is stored."""
        return self.run("podman", "image", "exists", image, is_checked=False).returncode == 0

    def build(self, tag: str, *flags: object, text_in: str | None = None) -> None:
        """Builds an image from a Dockerfile, without asking a registry."""
        options = ("--isolation", "chroot", "--network", "host", "--pull=never", "--layers")
        self.run("buildah", "bud", *options, "-t", tag, *flags, text_in=text_in)


def build_images(engine: Engine) -> None:
    """Builds the bases, if they are missing, and every image."""
    if not engine.has(DEBIAN):
        _report("debootstrap")
        tree = engine.folder / "debian"
        shutil.rmtree(tree, ignore_errors=True)
        engine.run("debootstrap", "--variant=minbase", "bookworm", tree)
        archive = engine.folder / "debian.tar"
        engine.run("tar", "-C", tree, "--exclude=./var/cache/apt/archives/*", "-cf", archive, ".")
        engine.run("podman", "import", archive, DEBIAN)
        archive.unlink()
        shutil.rmtree(tree)
    for image, text in ((PYTHON, _PYTHON_BASE), (VALKEY, _VALKEY_SERVER)):
        if not engine.has(image):
            _report(f"build {image}")
            engine.build(image, "-f", "-", engine.folder / "networks", text_in=text)
    # A proxy's certificate, if this machine has one.
    mounts = ("-v", f"{_CERTIFICATES}:{_CERTIFICATES}:ro") if Path(_CERTIFICATES).is_dir() else ()
    for name in IMAGES:
        _report(f"build {name}")
        arguments = ("--build-arg", f"PYTHON_IMAGE={PYTHON}", "--format", "docker")
        engine.build(f"{_image(name)}", *arguments, *mounts, "--target", name, ROOT)


def check_images(engine: Engine) -> None:
    """Prints the size of each image, and checks its user and that it has no torch."""
    base_bytes = _size_bytes(engine, PYTHON)
    for name in IMAGES:
        added = _size_bytes(engine, _image(name)) - base_bytes
        # Without a network, a writable root or capabilities, as pods run.
        flags = ("--rm", "--read-only", "--cap-drop=all", "--network=none")
        code = (
            "import importlib.util, os;"
            " assert os.getuid() != 0, 'runs as root';"
            " assert importlib.util.find_spec('torch') is None, 'has torch'"
        )
        engine.run("podman", "run", *flags, _image(name), "python", "-c", code)
        print(f"  {name}: {added / 1e6:.0f} MB above the base", flush=True)


def run_farm(engine: Engine, values: Path, then: str) -> None:
    """Starts the chart's pods, runs the chart's test, and stops the pods by SIGTERM."""
    vendors = [name.partition("-")[2] for name in IMAGES if name.startswith("worker-")]
    workers = json.dumps([{"vendor": vendor} for vendor in vendors])
    rendered = engine.run(
        *(_tool("helm"), "template", "kf", ROOT / "deploy/helm/kernelfarm", "-f", values),
        *("--set", f"valkey.image={VALKEY}", "--set", "image.tag=images-test"),
        *("--set-json", f"workers={workers}"),
    ).stdout
    pods = farm_pods(rendered, SUBNET)
    engine.run("podman", "network", "create", "--subnet", f"{SUBNET}.0/24", NETWORK)
    try:
        for pod in pods:
            began_s = time.monotonic()
            _play(engine, pod)
            _wait_ready(engine, pod)
            _report(f"{pod.name} is ready after {time.monotonic() - began_s:.1f} s")
        _run_test(engine, test_pod(rendered, pods, SUBNET))
        if then:
            frontend = next(pod for pod in pods if pod.component == "frontend")
            _run_then(then, f"{frontend.address}:50051")
        for pod in reversed(pods):
            _stop(engine, pod)
    except ImagesTestError:
        for pod in pods:
            logs = engine.run("podman", "logs", "--tail=5", pod.container, is_checked=False)
            print(f"--- {pod.name}\n{logs.stdout}{logs.stderr}", flush=True)
        raise
    finally:
        engine.run("podman", "pod", "rm", "-fa", is_checked=False)
        engine.run("podman", "volume", "rm", "-fa", is_checked=False)
        engine.run("podman", "network", "rm", "-f", NETWORK, is_checked=False)


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


def _run_test(engine: Engine, pod: FarmPod) -> None:
    _play(engine, pod)
    status = engine.run("podman", "wait", pod.container).stdout.split()[-1]
    logs = engine.run("podman", "logs", pod.container)
    print(logs.stdout + logs.stderr, end="", flush=True)
    if status != "0":
        raise ImagesTestError(f"the chart's test ended with {status}")


def _run_then(command: str, endpoint: str) -> None:
    """Runs a client of this machine, for example one with torch."""
    _report(f"{command} (KERNELFARM_ENDPOINT={endpoint})")
    environment = {**os.environ, "KERNELFARM_ENDPOINT": endpoint, "KERNELFARM_SIGNING": "off"}
    status = subprocess.run(command, shell=True, env=environment, check=False).returncode
    if status != 0:
        raise ImagesTestError(f"{command} ended with {status}")


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
    _report(f"{pod.name} ended within {took_s:.1f} s")


def _image(name: str) -> str:
    return f"localhost/kernelfarm/{name}:images-test"


def _size_bytes(engine: Engine, image: str) -> int:
    return int(engine.run("podman", "image", "inspect", "--format", "{{.Size}}", image).stdout)


def _tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _report(text: str) -> None:
    print(f"images-test: {text}", flush=True)


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
    _report("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
