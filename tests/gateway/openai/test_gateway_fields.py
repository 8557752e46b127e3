"""Every field of every request with every kind of nonsense: a 400 that names it, in OpenAI's shape, unbought."""

import pytest

from nodewire.gateway.openai.fields import HARMLESS, NEUTRAL, SAMPLING
from tests.gateway.counter import StandIn, opened

BODIES = {
    "completions": {"model": "plain", "prompt": "hello"},
    "chat/completions": {"model": "talker", "messages": [{"role": "user", "content": "hello"}]},
    "embeddings": {"model": "encoder", "input": "hello"},
}
NONSENSE = [True, False, 0, 1, -1, 2, 1.5, -1e308, 10**30, "", "x", "\x00", [], [None], [[1]], {}, {"a": 1}]
NONSENSE += [{"type": "text"}, [{"type": "text"}], {"5": "x"}, {"5": 1e9}, {"05": 1}, {"-1": 1}, ["x"] * 5]
COMMON = {"model", "stream", "stream_options"}
FIELDS = {
    "completions": {"prompt", "response_format", "logprobs", *COMMON, *SAMPLING, *NEUTRAL},
    "chat/completions": {
        *("messages", "tools", "tool_choice", "response_format", "logprobs", "top_logprobs", "chat_template_kwargs"),
        *COMMON,
        *SAMPLING,
        *NEUTRAL,
    },
    "embeddings": {"model", "input", "encoding_format", *NEUTRAL},
}
ALL = set().union(*FIELDS.values(), HARMLESS, {"colour", "x" * 200})


def is_named(param, field):
    """The field, or a part of it."""
    return param == field[:64] or (param or "").startswith((f"{field}[", f"{field}."))


@pytest.mark.parametrize("path", BODIES)
async def test_nonsense_is_refused_by_the_fields_name_or_is_none(tmp_path, path):
    """What is taken must be what the field means: then it has been bought, once."""
    taken: dict[str, list] = {}
    async with opened(tmp_path, max_requests=64) as gateway:
        for field in sorted(ALL):
            for value in NONSENSE[:4] if field in HARMLESS else NONSENSE:
                before = len(gateway.buyer.orders)
                body = {**BODIES[path], field: value}
                async with gateway.client.post(path, json=body) as answer:
                    streams = answer.content_type == "text/event-stream"
                    said = await answer.text() if streams else await answer.json()
                if answer.status == 200:
                    taken.setdefault(field, []).append(value)
                    assert len(gateway.buyer.orders) == before + 1
                    continue
                error = said["error"]
                assert error.keys() == {"message", "type", "param", "code"}, (field, value)
                assert error["type"] == "invalid_request_error" and isinstance(error["message"], str)
                assert answer.status == 400 or (field == "model" and answer.status == 404), (field, value, error)
                assert is_named(error["param"], field), (field, value, error)
                assert len(gateway.buyer.orders) == before, (field, value)
    unknown = ALL - FIELDS[path] - HARMLESS
    assert not unknown & taken.keys()
    assert taken.keys() >= HARMLESS
    for field in {"model", "stream_options"} & FIELDS[path]:
        assert field not in taken
    for field, values in taken.items():
        assert len(values) < len(NONSENSE) or field in HARMLESS, field


@pytest.mark.parametrize("path", BODIES)
async def test_null_is_what_is_left_out(tmp_path, path):
    needed = {"model", "prompt", "messages", "input"}
    async with opened(tmp_path) as gateway:
        await gateway.post(path, {**BODIES[path], "seed": 1} if path != "embeddings" else BODIES[path])
        empty = dict.fromkeys(FIELDS[path] - needed) | {"seed": 1}
        if path == "embeddings":
            del empty["seed"]
        assert (await gateway.post(path, {**BODIES[path], **empty}))[0] == 200
        first, second = gateway.buyer.orders
        assert first.params == second.params


async def test_what_the_market_says_of_a_request_keeps_that_shape(tmp_path):
    from nodewire.errors import TABLE

    async with opened(tmp_path, StandIn(says=[])) as gateway:
        for error in TABLE.values():
            gateway.buyer.fails = error("somewhere", "why")
            for path, body in BODIES.items():
                status, said = await gateway.post(path, body)
                assert 400 <= status < 600 and said["error"].keys() == {"message", "type", "param", "code"}
                assert gateway.accounts.reserved_msat("somebody") == 0
