"""The chat template of a Hugging Face folder or of a GGUF file.

A folder's is chat_template.jinja, or else what tokenizer_config.json has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from nodewire.errors import BadConfig, TooLarge
from nodewire.gguf import model as gguf
from nodewire.gguf.chat import TOKENS, chat_of
from nodewire.protocol.model.chat_template import MAX_TEMPLATE_CHARS, ChatTemplate

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
_MAX_FILE_BYTES = 32 * 2**20
"""Of a tokenizer_config.json, which may list all added tokens."""


def chat_template(folder: Path) -> ChatTemplate | None:
    """The template of the model in `folder`, which may be a GGUF file; None if it has none.

    Raises:
        BadConfig: a file cannot be read, or is not what its name says.
        NotFound, BadTask, Unsupported: a GGUF file is missing or malformed.
        BadManifest, TooLarge: the template, or a token, is longer than may be published.

    """
    if gguf.is_gguf(folder):
        template, tokens = chat_of(gguf.open_model(folder))
    else:
        config, alone = _config(folder / CONFIG), folder / TEMPLATE
        template = _read(alone).decode("utf-8", "replace") if alone.is_file() else _default(config.get("chat_template"))
        tokens = {name: text for name in TOKENS if (text := _text(config.get(name)))}
    if not template:
        return None
    if len(template) > MAX_TEMPLATE_CHARS:
        raise TooLarge("chat_template", f"{len(template)} characters, at most {MAX_TEMPLATE_CHARS}")
    return ChatTemplate.from_document({"v": 1, "template": template, "tokens": tokens})


def template_file(path: Path) -> ChatTemplate:
    """The template in a file of one's own, which writes its special tokens itself. Raises as `chat_template`."""
    text = _read(path).decode("utf-8", "replace")
    return ChatTemplate.from_document({"v": 1, "template": text, "tokens": {}})


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = orjson.loads(_read(path))
    except orjson.JSONDecodeError as error:
        raise BadConfig(str(path), "is not JSON") from error
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise TooLarge(str(path), f"over {_MAX_FILE_BYTES} bytes")
    return data


def _default(said: Any) -> str:
    """Of several named templates the one called default."""
    if isinstance(said, list):
        named = {one.get("name"): one.get("template") for one in said if isinstance(one, dict)}
        said = named.get("default")
    return said if isinstance(said, str) else ""


def _text(said: Any) -> str:
    """A token is written as its text, or as an object that has it as `content`."""
    if isinstance(said, dict):
        said = said.get("content")
    return said if isinstance(said, str) else ""
