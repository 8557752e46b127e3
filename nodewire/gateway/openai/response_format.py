"""`response_format`: text that is JSON, any object or what a schema admits, as OpenAI's structured outputs have it.

https://platform.openai.com/docs/guides/structured-outputs. Every schema is kept to, `strict` or not.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from nodewire.errors import BadInput
from nodewire.gateway.openai.refusals import bad_request
from nodewire.protocol.model import json_schema

FORMAT = "response_format"
_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
_MAX_DESCRIPTION = 4_096


def shape(said: Any) -> dict[str, Any]:
    """The job's parameters for a request's `response_format`; none for text.

    Raises:
        Refusal: it is no such object, or its schema is out of bounds.

    """
    if said is None:
        return {}
    kind = said.get("type") if isinstance(said, dict) else None
    if kind in ("text", "json_object"):
        if len(said) > 1:
            raise bad_request(f"{FORMAT}: nothing stands beside the type {kind}", FORMAT)
        return {"json_object": True} if kind == "json_object" else {}
    if kind != "json_schema" or said.keys() != {"type", "json_schema"}:
        raise bad_request(f"{FORMAT}: not an object of type text, json_object or json_schema", FORMAT)
    return {"json_schema": _schema(said["json_schema"], f"{FORMAT}.json_schema")}


def _schema(said: Any, where: str) -> str:
    """The schema's text; the order of its properties is the answer's."""
    if not isinstance(said, dict) or not said.keys() <= {"name", "description", "schema", "strict"}:
        raise bad_request(f"{where}: not an object of name, description, schema and strict", FORMAT)
    if not isinstance(said.get("name"), str) or not _NAME.fullmatch(said["name"]):
        raise bad_request(f"{where}.name: not 1 to 64 letters, digits, _ and -", FORMAT)
    if not isinstance(said.get("description") or "", str) or len(said.get("description") or "") > _MAX_DESCRIPTION:
        raise bad_request(f"{where}.description: not a string of at most {_MAX_DESCRIPTION} characters", FORMAT)
    if not isinstance(said.get("strict") or False, bool):
        raise bad_request(f"{where}.strict: neither true nor false", FORMAT)
    if not isinstance(said.get("schema"), dict):
        raise bad_request(f"{where}.schema: is missing, or not an object", FORMAT)
    try:
        return json_schema.check(orjson.dumps(said["schema"]).decode())
    except BadInput as error:
        raise bad_request(f"{where}.schema: {error.reason}", FORMAT) from error
