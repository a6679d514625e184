"""`python -m codegen_svc.worker --queue cpu`: compiles the jobs of one vendor's queue."""

from __future__ import annotations

import argparse
import sys

from codegen_svc.backends.registry import vendors
from codegen_svc.sandbox.level import STRONGEST, check_level
from codegen_svc.sandbox.probe import probed_level
from codegen_svc.settings import WorkerSettings
from codegen_svc.worker.main_process import run_worker
from kernelfarm import spans
from kernelfarm.errors import CallerError, UnavailableError
from kernelfarm.service.logs.logger import configure_logs
from kernelfarm.service.settings import load_settings
from kernelfarm.signing import Space


def main(argv: list[str]) -> int:
    """Serves until SIGTERM; the exit status, 2 for arguments or settings that cannot be used."""
    arguments = _parser().parse_args(argv)
    try:
        settings = load_settings(WorkerSettings)
        spans.start_export(f"worker-{arguments.queue}")  # checked now; pool processes do it again
        settings.signer(Space.KERNELS)  # checked now: without its key no result could be published
        if settings.sandbox != STRONGEST:
            check_level(probed_level(), settings.sandbox)
    except (CallerError, UnavailableError) as error:
        sys.stderr.write(f"worker: {error}\n")
        return 2
    configure_logs(settings, f"worker-{arguments.queue}")
    try:
        return run_worker(settings, arguments.queue, arguments.concurrency)
    except (CallerError, UnavailableError) as error:  # before the first job: the metrics' address
        sys.stderr.write(f"worker: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m codegen_svc.worker",
        description="Compiles the jobs of one vendor's queue until SIGTERM.",
        epilog="example: python -m codegen_svc.worker --queue cuda --concurrency 4",
    )
    parser.add_argument("--queue", required=True, choices=vendors(), help="the vendor to serve")
    parser.add_argument(
        "--concurrency",
        type=_positive,
        default=2,
        help="jobs at the same time, one process each; below 2, quick kernels wait for slow ones",
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; expected at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
