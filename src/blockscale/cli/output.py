"""Where a command speaks, and the option `--json` that all reporting commands have.

A command says what it is doing along the way and reports what it has found at the end. With
`--json`, standard output holds the report as one JSON value and nothing else; whatever is said
along the way goes to standard error, as progress bars always do.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from math import isfinite
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn

_OUTPUT = "out"  # the first parameter of a command, which stands for the option


class Output:
    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._said = Console(stderr=as_json, soft_wrap=True, highlight=False)

    def say(self, line: str) -> None:
        """Along the way."""
        self._said.print(line, markup=False)

    def note(self, line: str) -> None:
        """What accompanies the report and is never part of it: on standard error."""
        Console(stderr=True, soft_wrap=True, highlight=False).print(line, markup=False)

    def write(self, piece: str) -> None:
        """Along the way, a part of a line."""
        typer.echo(piece, nl=False, err=self._as_json)

    def report(self, data: Any, *shown: RenderableType) -> None:
        """At the end: values for programs, and the same for people."""
        if self._as_json:
            typer.echo(json.dumps(_plain(data), indent=2, allow_nan=False))
            return
        for each in shown:
            self._said.print(each, markup=False)

    def progress(self, *columns: str | ProgressColumn) -> Progress:
        """A bar that is gone when it is done."""
        return Progress(*columns, console=Console(stderr=True), transient=True)


def reporting(command: Callable[..., None]) -> Callable[..., None]:
    """A function of an Output and of options, as a command that has `--json` too."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        each.replace(annotation=hints[name])
        for name, each in inspect.signature(command).parameters.items()
        if name != _OUTPUT
    ]
    flag = inspect.Parameter(
        "as_json",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, typer.Option("--json", help="Print the report as JSON.")],
    )

    def run(as_json: bool, **options: Any) -> None:
        command(Output(as_json), **options)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    parameters = [*own, flag]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _plain(value: Any) -> Any:
    """In JSON's own types. Numbers that are not finite have no place there: null."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)
