"""``htam``: the command line. Commands are imported only when they are called."""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import sys
from typing import NoReturn

import click

from artifacts.errors import HtamError
from pipeline.project import defaults_of

COMMANDS = {
    "apply": "Check verified kernels of a run inside an nn.Module.",
    "ask": "Write a run's open LLM requests and evaluation jobs as JSONL.",
    "bench": "Evaluate candidates of a benchmark and write the field's table.",
    "demo": "Run the main job once on what the project ships.",
    "doctor": "Say what this host can do and what is missing.",
    "evaluate": "Build, check and time one candidate.",
    "explain": "Show why a step of a run chose its direction.",
    "export": "Write winners as packages of other projects, or logs as training data.",
    "logs": "Look into trajectory logs before mining them, and pack runs.",
    "mcp": "Give a coding agent judge and memory as tools.",
    "memory": "Build, inspect and publish memories.",
    "optimize": "Optimize tasks with a frozen memory.",
    "report": "Write the HTML page of a run or a memory.",
    "serve": "Serve the deployments of one settings file.",
    "tell": "Give a run answers or measurements and resume it.",
    "transfer": "Run a transfer study.",
}
"""Every command with its short help; ``pipeline/commands/<name>.py`` defines ``command``."""

REFUSALS = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is a file; check the path",
    errno.EISDIR: "a file is wanted here, not a folder",
    errno.EEXIST: "move it away, or name another path",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.EACCES: "correct its rights, or name another path",
    errno.EPERM: "correct its rights, or name another path",
    errno.EROFS: "name a path that can be written",
    errno.ENOSPC: "make room; what is written so far is kept",
    errno.EDQUOT: "make room; what is written so far is kept",
    errno.EMFILE: "allow more open files (ulimit -n)",
}
"""What the system refuses about a file, and what the user can do about it; other errors of the system are bugs."""


class LazyGroup(click.Group):
    """A group whose commands are imported on use, so that ``htam --help`` answers at once."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As any group does, with the nearest name where there is no such command."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as wrong:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if not near:
                raise
            raise click.UsageError(f"{wrong.message} Did you mean {near[0]!r}?", ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of :data:`COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"pipeline.commands.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the short helps without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="htam-kernels", prog_name="htam")
@click.pass_context
def cli(context: click.Context) -> None:
    """Make GPU operators fast with LLMs that remember.

    Offline, `htam memory build` mines logs into a frozen memory; online, `htam optimize` uses it. Defaults of options
    may stand in an `htam.toml`, here or in a folder above.
    """
    name = context.invoked_subcommand
    if name is not None and context.default_map is None:
        context.default_map = defaults_of(name, cli.get_command(context, name))


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    A user's mistake, and what the system refuses about a file, is one line on stderr and exit code 1; wrong usage is
    click's text and exit code 2; Ctrl-C is one line and exit code 130. A bug keeps its traceback.
    """
    _print_what_the_encoding_lacks()
    try:
        code = cli.main(args=args, prog_name="htam", standalone_mode=False)
    except click.ClickException as wrong:
        wrong.show()
        sys.exit(wrong.exit_code)
    except click.Abort:
        _fail("interrupted", 130)
    except HtamError as problem:
        _fail(str(problem), 1)
    except OSError as refused:
        if refused.errno not in REFUSALS:
            raise
        path = refused.filename2 or refused.filename
        _fail(f"{f'{path}: ' if path else ''}{refused.strerror}; {REFUSALS[refused.errno]}", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(line: str, code: int) -> NoReturn:
    click.echo(f"htam: {line}", err=True)
    sys.exit(code)


def _print_what_the_encoding_lacks() -> None:
    """Escape characters that the terminal's encoding lacks instead of failing on them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
