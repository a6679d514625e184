"""The command line, run in this process."""

from __future__ import annotations

from typer.testing import CliRunner

from kernelfarm.cli import make_app


def run_command(*arguments: object) -> str:
    """The output of `kernelfarm` with these arguments.

    Raises:
        Exception: the command failed with it.
    """
    ended = CliRunner().invoke(make_app(), [str(argument) for argument in arguments])
    if ended.exception is not None:
        raise ended.exception
    assert ended.exit_code == 0, ended.output
    return ended.stdout
