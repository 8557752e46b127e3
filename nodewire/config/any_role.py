"""A file of whichever role: its fields tell which."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_origin

from nodewire.config.customer import CustomerConfig
from nodewire.config.file import line_of, parse_toml, read_text, section_of
from nodewire.config.oracle import OracleConfig
from nodewire.config.provider import ProviderConfig
from nodewire.errors import BadConfig

if TYPE_CHECKING:
    from pathlib import Path

AnyRole = CustomerConfig | ProviderConfig | OracleConfig


def load_role(path: Path) -> AnyRole:
    """The file as the role whose fields it has: a seat is an oracle's, sales are a provider's. Raises BadConfig."""
    text = read_text(path)
    data = parse_toml(path, text)
    _no_other_tables(path, text, data)
    if "seat" in data:
        return OracleConfig.load(path)
    return (
        ProviderConfig.load(path)
        if (ProviderConfig.model_fields.keys() - CustomerConfig.model_fields.keys()) & data.keys()
        else CustomerConfig.load(path)
    )


def _no_other_tables(path: Path, text: str, data: dict[str, Any]) -> None:
    """Refuse a table that no role has: without it the file may look like another role's."""
    models = CustomerConfig, ProviderConfig, OracleConfig
    known = {name: field for model in models for name, field in model.model_fields.items()}
    headers = {name: f"[[{name}]]" if get_origin(known[name].annotation) is tuple else f"[{name}]" for name in known}
    for name, value in data.items():
        is_list = isinstance(value, list) and any(isinstance(one, dict) for one in value)
        if name in known or not (is_list or isinstance(value, dict)):
            continue
        line = line_of(name, "", 0, text)
        close = get_close_matches(name, [name for name in known if section_of(known[name].annotation)], n=1)
        said = f"unknown table {f'[[{name}]]' if is_list else f'[{name}]'}"
        said += f"; did you mean {headers[close[0]]}?" if close else ""
        raise BadConfig(f"{path}, line {line}" if line else str(path), said)
