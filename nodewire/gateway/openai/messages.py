"""A chat request's messages and tools, as chat templates are given them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from nodewire.chat import RESERVED
from nodewire.gateway.openai.refusals import bad_request, unsupported

if TYPE_CHECKING:
    from nodewire.gateway.openai.fields import Body
    from nodewire.protocol.model.chat_template import ChatTemplate

MAX_MESSAGES, MAX_TOOLS, MAX_CALLS = 2_048, 128, 128
VARIABLES = "chat_template_kwargs"
MAX_VARIABLES, MAX_VARIABLES_BYTES = 16, 4_096
_VARIABLE = re.compile("[A-Za-z][A-Za-z0-9_]{0,63}")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Templates know no developer."""
_HERMES = "<tool_call>"


def messages(body: Body) -> list[dict[str, Any]]:
    """The request's messages. Raises Refusal naming what is wrong with which."""
    said = body.get("messages")
    if not isinstance(said, list) or not said or len(said) > MAX_MESSAGES:
        raise bad_request(f"messages: not a list of 1 to {MAX_MESSAGES}", "messages")
    return [_message(one, f"messages[{number}]") for number, one in enumerate(said)]


def tools(body: Body, template: ChatTemplate) -> list[dict[str, Any]]:
    """The tools that the template is to know of. Raises Refusal: it knows none, or a choice cannot be honoured."""
    said = body.get("tools")
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise unsupported("tool_choice", "tool_choice: only auto and none can be honoured")
    if said is None or said == []:
        return []
    if not isinstance(said, list) or len(said) > MAX_TOOLS:
        raise bad_request(f"tools: not a list of at most {MAX_TOOLS}", "tools")
    for number, one in enumerate(said):
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict) or one.get("type") != "function" or not isinstance(function.get("name"), str):
            raise bad_request(f"tools[{number}]: not a function with a name", f"tools[{number}]")
    if choice == "none":
        return []
    if "tools" not in template.template:
        raise unsupported("tools", "tools: this model's chat template knows none")
    return said


def variables(body: Body) -> dict[str, Any]:
    """What a template is told besides, such as {"enable_thinking": false}. Other servers call the field so, too.

    Raises Refusal: a name is none that a template may be given, or it is too much.
    """
    said = body.get(VARIABLES)
    if said is None:
        return {}
    if not isinstance(said, dict) or len(said) > MAX_VARIABLES:
        raise bad_request(f"{VARIABLES}: not an object of at most {MAX_VARIABLES} names", VARIABLES)
    for name in said:
        if not _VARIABLE.fullmatch(name) or name in RESERVED:
            raise bad_request(f"{VARIABLES}: {name[:64]!r} is no name of its own for a template", VARIABLES)
    if len(orjson.dumps(said)) > MAX_VARIABLES_BYTES:
        raise bad_request(f"{VARIABLES}: over {MAX_VARIABLES_BYTES} bytes", VARIABLES)
    return said


def calls_are_parsed(template: ChatTemplate) -> bool:
    """Whether the model was taught to call tools as Hermes and Qwen do."""
    return _HERMES in template.template


def _message(said: Any, where: str) -> dict[str, Any]:
    role = said.get("role") if isinstance(said, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise bad_request(f"{where}: no message with a role of {', '.join(_ROLES)}", where)
    made: dict[str, Any] = {"role": _ROLES[role], "content": _content(said.get("content"), f"{where}.content")}
    for name in ("name", "tool_call_id"):
        if said.get(name) is not None:
            if not isinstance(said[name], str):
                raise bad_request(f"{where}.{name}: not a string", where)
            made[name] = said[name]
    calls = said.get("tool_calls")
    if calls:
        made["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    elif said.get("content") is None:
        raise bad_request(f"{where}.content: is missing", f"{where}.content")
    return made


def _content(said: Any, where: str) -> str:
    """Text, or parts that are text."""
    if said is None:
        return ""
    if isinstance(said, str):
        return said
    if not isinstance(said, list):
        raise bad_request(f"{where}: neither a string nor a list of parts", where)
    texts = []
    for part in said:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise unsupported(where, f"{where}: a part that is no text; this model reads nothing else")
        texts.append(part["text"])
    return "\n".join(texts)


def _calls(said: Any, where: str) -> list[dict[str, Any]]:
    """What an assistant called: templates want the arguments as an object, OpenAI has them as a string of JSON."""
    if not isinstance(said, list) or len(said) > MAX_CALLS:
        raise bad_request(f"{where}: not a list of at most {MAX_CALLS}", where)
    made = []
    for one in said:
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_request(f"{where}: a call without a function's name", where)
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = orjson.loads(arguments)
            except orjson.JSONDecodeError as error:
                raise bad_request(f"{where}: arguments that are not JSON", where) from error
        call = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        made.append({**call, **({"id": one["id"]} if isinstance(one.get("id"), str) else {})})
    return made
