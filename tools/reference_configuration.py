"""The page of all configuration files, made from the pydantic models that read them.

A field's text is the string below it in the source, its type and default are the model's: nothing is said twice.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel, BeforeValidator, StringConstraints
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from nodewire.cli.daemon.relay_file import RelayFile
from nodewire.config import CustomerConfig, OracleConfig, ProviderConfig, Section, TreasuryConfig, msat_of
from nodewire.gateway.config import GatewayConfig
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.encoding.validation_errors import words_of
from nodewire.swarm.file import SwarmFile
from relay.limits import BlobLimits, Limits
from tools.field_texts import text_of
from tools.reference_cli import as_text

_FORMS: dict[Any, str] = {
    parse_size: 'size: a number of bytes, or "10GB", "2GiB"',
    msat_of: 'amount: a number of millisats, or "187.5sat"',
}
_HEAD = """# Configuration

`make docs` writes this page from the code. A role is one process with one TOML file. A path in a file is relative to
the file. A field that is not listed here is refused, with its line.

```sh
nodewire doctor --config FILE
```

`doctor` tries all that a file names: relays, stores and committee, tasks and their memory, wallet and bond. It also
checks the network.
"""


@dataclass(frozen=True)
class File:
    """One kind of file: its heading, what the page says first, and its model."""

    title: str
    head: str
    model: type[BaseModel]


FILES = (
    File("Provider", "`nodewire provider --config FILE` ([guide](../how-to/run-a-provider.md)).", ProviderConfig),
    File("Customer", "Every command that buys has `--config FILE` ([guide](../how-to/buy.md)).", CustomerConfig),
    File("Gateway", "`nodewire gateway --config FILE` ([guide](../how-to/gateway.md)).", GatewayConfig),
    File("Oracle", "`nodewire oracle --config FILE` ([guide](../how-to/run-an-oracle.md)).", OracleConfig),
    File(
        "Treasury of a registrar",
        "`nodewire registrar --treasury FILE` ([guide](../how-to/lock-a-bond.md#run-a-registrar)).",
        TreasuryConfig,
    ),
    File("Relay", "`nodewire relay --config FILE` ([guide](../how-to/run-a-relay.md)).", RelayFile),
    File("Swarm", "`nodewire provider --swarm FILE` ([guide](../how-to/run-a-swarm.md)).", SwarmFile),
)
TEXTS_OF = {"LimitsSection": Limits, "StoreSection": BlobLimits}
"""Sections that are made of the relay's own dataclasses, where the texts stand."""


def page() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    seen: set[type] = set()
    for file in FILES:
        parts.append(f"## {file.title}\n\n{file.head}\n")
        parts += _tables(file.model, "", seen, file.title)
    return "\n".join(parts)


def fields() -> Iterator[tuple[type, str]]:
    """Every model of the page with each of its fields' names."""
    seen: set[type] = set()
    waiting: list[type] = [file.model for file in FILES]
    while waiting:
        model = waiting.pop()
        if model in seen:
            continue
        seen.add(model)
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            yield model, name
            waiting += [below] if (below := _section(field.annotation)) else []


def said_of(model: type, name: str) -> str:
    """What the source says of a field."""
    return text_of(TEXTS_OF.get(model.__name__, model), name)


def _tables(model: Any, path: str, seen: set[type], file: str) -> Iterator[str]:
    own = dict(model.model_fields)
    below = {name: section for name, field in own.items() if (section := _section(field.annotation))}
    if path and (words := inspect.getdoc(TEXTS_OF.get(model.__name__, model))) and model.__doc__:
        yield words.replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n\n") + "\n"
    yield "| field | value | default | |\n|---|---|---|---|"
    for name, field in own.items():
        value = _head_of(path, name, field.annotation) if name in below else _value(field.annotation, field.metadata)
        yield f"| `{name}` | {_cell(value)} | {_default(field)} | {_cell(said_of(model, name))} |"
    yield ""
    for name, section in below.items():
        heading = _head_of(path, name, own[name].annotation)
        yield f"### {file}: {heading}\n"
        if section in seen:
            yield "The fields are those of the table of the same name above.\n"
        else:
            seen.add(section)
            yield from _tables(section, f"{path}{name}.", seen, file)


def _head_of(path: str, name: str, annotation: Any) -> str:
    several = any(get_origin(one) is tuple for one in _alternatives(annotation))
    named = any(get_origin(one) is dict for one in _alternatives(annotation))
    return f"`[[{path}{name}]]`" if several else f"`[{path}{name}]`" + ", by name" * named


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _section(annotation: Any) -> Any:
    """The section that a field holds, or None."""
    for one in _alternatives(annotation):
        for part in (one, *get_args(one)):
            if inspect.isclass(part) and issubclass(part, Section):
                return part
    return None


def _value(annotation: Any, metadata: Any = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _value(arguments[0], (*arguments[1:], *metadata))
    if origin in (Union, types.UnionType):
        return " or ".join(_value(one, metadata) for one in arguments if one is not type(None))
    if origin is Literal:
        return ", ".join(f"`{one!r}`".replace("'", '"') for one in arguments)
    if origin in (tuple, frozenset):
        least, most = (_bound(metadata, kind) for kind in (MinLen, MaxLen))
        count = f"{least or 0} to {most} of: " if most else "list of: "
        return count + _value(arguments[0])
    for one in metadata:
        if isinstance(one, BeforeValidator) and one.func in _FORMS:
            return _FORMS[one.func]
        if isinstance(one, BeforeValidator) and "layers" in one.func.__name__:
            return 'layers such as "0-7"'
        if isinstance(one, BeforeValidator) and "public" in one.func.__name__:
            return "npub, or 64 hex digits"
        if isinstance(one, StringConstraints):
            return words_of(one.pattern) or f"text, at most {one.max_length} characters"
    if annotation in (int, float):
        least, most = _bound(metadata, Ge), _bound(metadata, Le)
        span = f", {least:,} to {most:,}" if most is not None and most < 2**50 else f", at least {least}"
        return "number" + (span if least is not None else "")
    if annotation is Path:
        return "path"
    return {str: "text", bool: "true or false"}.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _bound(metadata: Any, kind: Any) -> Any:
    attribute = {Ge: "ge", Le: "le", MinLen: "min_length", MaxLen: "max_length"}[kind]
    for one in metadata:
        if isinstance(one, FieldInfo):
            return _bound(one.metadata, kind)
        if isinstance(one, kind):
            return getattr(one, attribute)
    return None


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.is_required():
        return "required"
    if value is None or value is PydanticUndefined or isinstance(value, BaseModel) or value in ("", (), {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"{value:,}"
    shown = ", ".join(str(one) for one in value) if isinstance(value, tuple) else str(value)
    return f"`{shown}`"


def _cell(text: str) -> str:
    return as_text(" ".join(text.split()).replace("|", "\\|"))
