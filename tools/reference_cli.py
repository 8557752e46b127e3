"""The page of all commands, made from the typer application that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import typer.main

from nodewire.cli.commands import app
from nodewire.cli.output import CUSTOMERS, DEVELOPERS, OPERATORS

_HEAD = """# Commands

`make docs` writes this page from the code. `nodewire COMMAND --help` prints the same.

Every command takes `--help`. A command with `--json` prints one JSON document on standard output. Errors go to
standard error. The exit code is 0 after success, 1 after an error, 2 after a wrong option, and 130 after Ctrl-C.
"""


def page() -> str:
    """The whole page, in Markdown."""
    root: Any = typer.main.get_command(app)
    parts = [_HEAD]
    for panel in (CUSTOMERS, OPERATORS, DEVELOPERS):
        parts.append(f"## {panel}\n")
        for name, command in sorted(root.commands.items()):
            if getattr(command, "rich_help_panel", None) == panel and not command.hidden:
                parts += _described(f"nodewire {name}", command, 3)
    return "\n".join(parts)


def commands(command: Any = None, name: str = "nodewire") -> Iterator[str]:
    """The full name of every command that is not hidden."""
    command = typer.main.get_command(app) if command is None else command
    for below, one in getattr(command, "commands", {}).items():
        if not one.hidden:
            yield f"{name} {below}"
            yield from commands(one, f"{name} {below}")


def _described(name: str, command: Any, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} `{name}`\n"
    yield _prose(command.help or "") + "\n"
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield from _usage(name, command)
    for part, one in below.items():
        if not one.hidden:
            yield from _described(f"{name} {part}", one, depth + 1)


def _usage(name: str, command: Any) -> Iterator[str]:
    parameters = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option"]
    usage = " ".join([name, *(_placeholder(one) for one in arguments), *["[OPTIONS]"] * bool(options)])
    yield f"```sh\n{usage}\n```\n"
    if parameters:
        yield "| argument or option | default | |\n|---|---|---|"
        for one in (*arguments, *options):
            yield f"| {_names(one)} | {_default(one)} | {_cell(one.help or '')} |"
        yield ""


def _placeholder(argument: Any) -> str:
    name = argument.name.upper() + "..." * (argument.nargs != 1)
    return name if argument.required else f"[{name}]"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    names = [*parameter.opts, *parameter.secondary_opts]
    value = "" if parameter.is_flag or getattr(parameter, "count", False) else f" {_value(parameter)}"
    return ", ".join(f"`{name}{value}`" for name in names)


def _value(option: Any) -> str:
    if option.metavar:
        return str(option.metavar)
    annotation = option.type_descriptor.annotation
    (kind,) = get_args(annotation)[:1] or (annotation,)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "/".join(str(one.value) for one in kind)
    if isinstance(kind, str):
        return "/".join(map(str, get_args(annotation)))
    return {Path: "PATH", str: "TEXT", int: "INTEGER", float: "NUMBER"}.get(kind, str(kind))


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if callable(value) or value in (None, False, (), [], "") or repr(value).endswith("UNSET"):
        return ""
    return f"`{'on' if value is True else getattr(value, 'value', value)}`"


def _prose(text: str) -> str:
    """Help as paragraphs: typer's own breaks are kept out."""
    return as_text("\n\n".join(" ".join(part.split()) for part in text.replace("\b", "").split("\n\n")))


def _cell(text: str) -> str:
    return as_text(" ".join(text.split()).replace("|", "\\|"))


def as_text(words: str) -> str:
    """Words in which angle brackets are no tags, outside of code."""
    parts = words.split("`")
    return "`".join(part if at % 2 else part.replace("<", "&lt;") for at, part in enumerate(parts))
