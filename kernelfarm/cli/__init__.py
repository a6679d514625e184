"""The command line: `kernelfarm COMMAND`.

One module for each command, each with `register(app)`. A command imports its dependencies when it
runs, so that `kernelfarm --help` is fast and needs neither torch nor redis.
"""

from __future__ import annotations

import sys
from importlib import import_module

import typer

from kernelfarm.errors import KernelfarmError

COMMANDS = (
    "up",
    "compile",
    "compile-triton",
    "compile-tilelang",
    "warm",
    "verify-coverage",
    "export-bundle",
    "import-bundle",
    "show-bundle",
    "explain",
    "doctor",
    "self-test",
    "keys",
    "invalidate",
    "explain-miss",
    "usage",
    "sweep",
    "tenants",
    "cache",
    "top",
)
"""The modules of this package that are commands, in the order of `--help`."""

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

_HINTS = {
    "CREDENTIALS_MISSING": "set KERNELFARM_TOKEN, or KERNELFARM_CLIENT_CERT_FILE and _KEY_FILE",
    "TOKEN_UNKNOWN": "the farm's operator makes tokens with `kernelfarm tenants token`",
    "TOKEN_EXPIRED": "the farm's operator makes tokens with `kernelfarm tenants token`",
    "NO_ANSWER": "start a farm with `kernelfarm up`; `kernelfarm doctor` checks the connection",
    "FARM_FULL": "the farm is busy; try again in a moment",
    "DEADLINE_EXCEEDED": "the farm continues the build; repeat the command later for the result",
    "UNKNOWN_TARGET": "`kernelfarm doctor` lists the targets",
}


def make_app() -> typer.Typer:
    """The application with every command registered."""
    app = typer.Typer(
        name="kernelfarm",
        help="A compile farm for AI kernels: compiles graphs into fused kernels for every vendor.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in COMMANDS:
        import_module(f"{__name__}.{name.replace('-', '_')}").register(app)
    return app


def main() -> None:
    """Runs the command of `sys.argv`; prints a `KernelfarmError` as one line, with exit code 1."""
    try:
        make_app()()
    except KernelfarmError as error:
        if error.status == "INTERNAL":
            raise  # a bug of kernelfarm: a bug report needs the stack trace
        _print_error(error)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _root() -> None:
    # With a callback, typer makes `up` a sub-command even if it is the only command.
    pass


def _print_error(error: KernelfarmError) -> None:
    print(f"kernelfarm: error: {error}", file=sys.stderr)
    hint = _HINTS.get(error.reason)
    if hint is not None:
        print(f"kernelfarm: hint: {hint}", file=sys.stderr)
