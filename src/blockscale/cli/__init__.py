"""The command `blockscale`: formats, layouts, kernels, machines and models, from a terminal.

Commands load torch when they run. Help, completion and wrong arguments do without it, since it
takes seconds to import.
"""

from __future__ import annotations

import io
import sys
import warnings
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import blockscale
from blockscale.cli.cache import cache
from blockscale.cli.doctor import doctor
from blockscale.cli.eval import evaluate
from blockscale.cli.explain import explain
from blockscale.cli.formats import formats
from blockscale.cli.generate import generate_text
from blockscale.cli.inspect import inspect
from blockscale.cli.layout import layout
from blockscale.cli.output import reporting
from blockscale.cli.prove import prove
from blockscale.cli.quantize import quantize
from blockscale.cli.tune import tune
from blockscale.cli.warmup import warmup

# What the library raises where input or the machine are at fault. Anything else is a defect, and
# its traceback is wanted.
_USERS_ERRORS = (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError)

commands = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # help texts have shapes in square brackets
)
for command in (formats, layout, explain, doctor, quantize, inspect, warmup, tune, prove, cache):
    commands.command()(reporting(command))
commands.command("generate")(reporting(generate_text))
commands.command("eval")(reporting(evaluate))  # `eval` is Python's own


@commands.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """The linear layers of language models at 2 to 8 bits a weight, on any machine."""
    if version:
        typer.echo(blockscale.__version__)
        raise typer.Exit


def app() -> None:
    """Run a command; bad input is one line on standard error and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that has no plus-minus sign, say
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            commands()
        except _USERS_ERRORS as error:
            _say("error: ", "bold red", str(error) or type(error).__name__)
            sys.exit(2)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """Without the line of code that it came from."""
    _say("warning: ", "bold yellow", str(message))


def _say(label: str, style: str, message: str) -> None:
    Console(stderr=True, soft_wrap=True).print(Text.assemble((label, style), message))
