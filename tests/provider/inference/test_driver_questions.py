"""What only a driver can know of a generation's parameters: over a whole job, with guesses and without."""

from __future__ import annotations

import asyncio
import json

import pytest

from nodewire.customer.models.text import ModelText
from nodewire.customer.payments.job_payments import most_positions
from nodewire.customer.tokens.reader import TokenReader
from nodewire.errors import BadInput, NodewireError, Unsupported
from nodewire.llm.tokens import grammar
from nodewire.nostr.nips import nip44
from nodewire.protocol.job import feedback
from nodewire.protocol.tensors.frame import Array, Frame
from tests.kinds.llama import make_llama
from tests.provider.inference.test_provider_job import CUSTOMER, PROMPT, make_market

pytest.importorskip("llguidance")

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["fox", "dog"]}},
        "required": ["name", "kind"],
        "additionalProperties": False,
    }
)
HOT = {"temperature": 1.5, "seed": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_llama(tmp_path_factory.mktemp("llama"), max_position_embeddings=400, seed=5, eos_token_id=299)


async def reader_of(market, inputs):
    class Record:
        async def fetch_blob(self, sha256, max_bytes):
            return market.registration.blobs[sha256]

    run = next(iter(market.runs.values()))
    params = {"positions": market.manifest.context, **run._job.params}
    most = most_positions(market.manifest, inputs)
    return TokenReader(await ModelText.load(market.manifest, Record()), params, (), most)


async def pieces(market, max_pieces=10**6):
    """What the customer is told of a job that is served and paid."""
    found = []
    async with asyncio.TaskGroup() as group:
        for run in market.runs.values():
            group.create_task(run.run())
        paying = asyncio.create_task(market.pay_everything())
        text = PROMPT.encode()
        prompt = Frame("prompt", 0, (Array("uint8", (len(text),), text),), {"chunk": 0})
        reader = await reader_of(market, [prompt])
        await market.box.put(prompt)
        while not found or not found[-1].end:
            found.append(reader.piece(await asyncio.wait_for(market.box.get(), 20)))
    paying.cancel()
    return found


async def refused(market):
    """How the job fails: the driver's error, and what its feedback says to the customer alone."""
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(pieces(market), 30)
    driver = next(run for run in market.runs.values() if run.drives)
    said = next(f for f in map(market.parsed, market.events) if f and f.status == "error" and not f.by)
    assert said.provider == driver._context.keys.public
    why = feedback.ErrorDetail.parse(nip44.decrypt(said.ciphertext, nip44.conversation_key(CUSTOMER, said.provider)))
    assert any(isinstance(one, NodewireError) for one in ended.value.exceptions)
    return said, why


@pytest.mark.parametrize("params", [{"json_schema": SCHEMA}, {"json_schema": SCHEMA, **HOT}], ids=["greedy", "drawn"])
async def test_a_text_is_its_schemas_and_the_same_with_guesses(folder, tmp_path, params):
    plain = await pieces(make_market(folder, tmp_path / "plain", params={**params, "logprobs": 2}))
    found = json.loads("".join(piece.text for piece in plain))
    assert list(found) == ["name", "kind"] and found["kind"] in ("fox", "dog")
    ahead = await pieces(make_market(folder, tmp_path / "ahead", lookahead=8, params={**params, "logprobs": 2}))
    assert [(p.ids, p.text, p.end, p.reason) for p in ahead] == [(p.ids, p.text, p.end, p.reason) for p in plain]
    for one, other in zip(ahead, plain, strict=True):
        assert [row.id for row in one.likely] == [row.id for row in other.likely] and len(one.likely) == 3
        assert all(abs(a.logprob - b.logprob) < 1e-4 for a, b in zip(one.likely, other.likely, strict=True))


@pytest.mark.parametrize(
    ("params", "code", "field"),
    [
        ({"logit_bias": {"300": 1.0}}, "bad-input", "logit_bias"),
        ({"json_schema": '{"$ref":"http://example.com/x"}'}, "bad-input", "json_schema"),
        ({"json_schema": '{"type":"string","pattern":"("}'}, "bad-input", "json_schema"),
    ],
)
async def test_what_the_driver_refuses_is_named_to_the_customer_alone(folder, tmp_path, params, code, field):
    market = make_market(folder, tmp_path, params=params)
    said, why = await refused(market)
    assert (said.text, said.edge, why.field) == (code, "", field)
    public = json.dumps([event.as_dict() for event in market.events])
    assert field not in public


async def test_a_driver_without_the_grammars_release_says_that_it_cannot(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(grammar.llguidance, "__version__", "1.8.3")
    said, why = await refused(make_market(folder, tmp_path, params={"json_schema": SCHEMA}))
    assert (said.text, why.field) == (Unsupported.code, "json_schema")


async def test_a_schema_that_proves_too_dear_amid_the_text_is_no_neighbours_fault(folder, tmp_path, monkeypatch):
    def exhausted(self):
        raise BadInput("json_schema", "the schema takes more work than a token may")

    monkeypatch.setattr(grammar.Grammar, "allowed", exhausted)
    said, why = await refused(make_market(folder, tmp_path, params={"json_schema": SCHEMA}))
    assert (said.text, said.edge, why.field) == ("bad-input", "", "json_schema")
