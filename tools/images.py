"""Builds and checks every image, with buildah and podman, for `tools.images_test`.

No registry of images, no Docker: debootstrap makes the base. Storage and configuration are in a
folder of their own, so those of the machine stay as they are.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEBIAN = "docker.io/library/debian:bookworm-slim"
PYTHON = "docker.io/library/python:3.11-slim-bookworm"
VALKEY = "localhost/kernelfarm/valkey:test"
IMAGES = (
    *("frontend", "optimizer", "codegen"),
    *("worker-cpu", "worker-cuda", "worker-rocm", "worker-ascend", "all"),
)
WARMING = "warming"

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
        report("debootstrap")
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
            report(f"build {image}")
            engine.build(image, "-f", "-", engine.folder / "networks", text_in=text)
    # A proxy's certificate, if this machine has one.
    mounts = ("-v", f"{_CERTIFICATES}:{_CERTIFICATES}:ro") if Path(_CERTIFICATES).is_dir() else ()
    for name in IMAGES:
        report(f"build {name}")
        arguments = ("--build-arg", f"PYTHON_IMAGE={PYTHON}", "--format", "docker")
        engine.build(image_tag(name), *arguments, *mounts, "--target", name, ROOT)
    _build_warming_image(engine, mounts)


def _build_warming_image(engine: Engine, mounts: tuple[str, ...]) -> None:
    """Builds the image of `examples/warming.Dockerfile`, with the same torch as this machine."""
    wheels = engine.folder / "wheels"
    torch = f"torch=={metadata.version('torch')}"
    if not list(wheels.glob(f"{torch.replace('==', '-')}-*.whl")):
        report(f"download {torch}")
        shutil.rmtree(wheels, ignore_errors=True)
        engine.run(sys.executable, "-m", "pip", "download", "--no-deps", "-d", wheels, torch)
    report(f"build {WARMING}")
    dockerfile = ROOT / "examples/warming.Dockerfile"
    ignored = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
    arguments = {
        "KERNELFARM_IMAGE": image_tag("frontend"),
        "TORCH": torch,
        "PIP_FLAGS": "--find-links /wheels",
    }
    flags = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    files = ("-f", dockerfile, "--ignorefile", ignored, "-v", f"{wheels}:/wheels:ro")
    engine.build(image_tag(WARMING), *files, *mounts, *flags, ROOT)


def check_images(engine: Engine) -> None:
    """Prints the size of each image, and checks its user and that it has no torch."""
    base_bytes = _size_bytes(engine, PYTHON)
    for name in IMAGES:
        added = _size_bytes(engine, image_tag(name)) - base_bytes
        # Without a network, a writable root or capabilities, as pods run.
        flags = ("--rm", "--read-only", "--cap-drop=all", "--network=none")
        code = (
            "import importlib.util, os;"
            " assert os.getuid() != 0, 'runs as root';"
            " assert importlib.util.find_spec('torch') is None, 'has torch'"
        )
        engine.run("podman", "run", *flags, image_tag(name), "python", "-c", code)
        print(f"  {name}: {added / 1e6:.0f} MB above the base", flush=True)


def image_tag(name: str) -> str:
    """The reference of an image of `IMAGES`, or of `WARMING`."""
    return f"localhost/kernelfarm/{name}:images-test"


def _size_bytes(engine: Engine, image: str) -> int:
    return int(engine.run("podman", "image", "inspect", "--format", "{{.Size}}", image).stdout)


def report(text: str) -> None:
    """Prints what the test does."""
    print(f"images-test: {text}", flush=True)
