"""Answers that no mint should give: each is a typed error of its field, and nothing of it is believed."""

from __future__ import annotations

import pytest
from aiohttp import web

from nodewire.errors import BadInput, BadSignature, LinkLost, NotAllowed, NotFound
from nodewire.pay.ecash import mint as mint_
from nodewire.pay.ecash.mint import Mint, MintRefused
from nodewire.pay.ecash.proofs import Proof, blanks
from tests.pay.wallets.services import mint_service
from tests.pay.wallets.services.mint_service import MintService

PROOF = Proof(1, "00" * 8, "secret", "02" + "11" * 32)


@pytest.fixture
async def served():
    """A mint that runs, and who asks it."""
    async with MintService().serving() as service:
        mint = Mint(service.url)
        yield service, mint
        await mint.close()


def says(value, status=200):
    return lambda do: (status, value)


ROW = {"id": "00" * 8, "unit": "sat", "active": True, "input_fee_ppk": 0}


@pytest.mark.parametrize(
    "rows",
    [[], [ROW | {"active": False}], [ROW | {"unit": "usd"}], [ROW | {"id": "x"}], [ROW | {"id": 7}], ["x", None]],
)
async def test_a_mint_without_an_active_keyset_of_satoshis_is_refused(served, rows):
    service, mint = served
    service.instead[mint_service.KEYSETS] = says({"keysets": rows})
    with pytest.raises(NotAllowed, match="no active keyset") as refused:
        await mint.active()
    assert refused.value.field == "mint"


async def test_of_several_active_keysets_the_one_with_the_least_fee_is_signed_by(served):
    service, mint = served
    rows = [ROW | {"id": "11" * 8, "input_fee_ppk": 500}, ROW | {"id": service.id, "input_fee_ppk": 0}]
    service.instead[mint_service.KEYSETS] = says({"keysets": rows})
    assert (await mint.active()).id == service.id


@pytest.mark.parametrize("rows", [[], [{"id": "11" * 8, "keys": {}}], [{"id": "ID", "keys": []}], ["x"]])
async def test_a_mint_that_tells_no_keys_of_a_keyset_is_a_lost_link(served, rows):
    service, mint = served
    told = [{**row, "id": service.id} if row == {"id": "ID", "keys": []} else row for row in rows]
    service.instead[mint_service.KEYS] = says({"keysets": told})
    with pytest.raises(LinkLost, match="does not tell the keys"):
        await mint.keyset(service.id)
    assert (await mint.keyset(service.id)).keys == service.keys  # nothing of it was kept


async def test_a_keyset_that_is_not_listed_has_no_keys(served):
    service, mint = served
    service.instead[mint_service.KEYSETS] = says({"keysets": []})
    with pytest.raises(LinkLost, match="does not tell the keys"):
        await mint.keyset(service.id)


@pytest.mark.parametrize("state", ["SPEND", None, 7])
async def test_a_mint_that_does_not_tell_a_proofs_state_is_a_lost_link(served, state):
    service, mint = served
    for rows in ([], [{"Y": PROOF.y, "state": state}], [{"Y": "02" + "11" * 32, "state": "SPENT"}], ["x"]):
        service.instead[mint_service.STATES] = says({"states": rows})
        with pytest.raises(LinkLost, match="the state of each proof"):
            await mint.states([PROOF])
    assert await mint.states([PROOF]) == ["UNSPENT"]


async def test_an_answer_over_the_bound_is_read_no_further_and_refused(served, monkeypatch):
    monkeypatch.setattr(mint_, "MAX_ANSWER_BYTES", 1_000)
    service, mint = served
    for size, error in ((990, None), (1_001, LinkLost), (90_000, LinkLost)):
        body = b'{"nuts":"' + b"x" * (size - 11) + b'"}'
        service.instead[mint_service.INFO] = lambda do, body=body: web.Response(body=body)
        if error is None:
            assert len((await mint.info())["nuts"]) == size - 11
            continue
        with pytest.raises(error, match="over 1000 bytes"):
            await mint.info()


async def test_an_answer_that_comes_in_pieces_is_read_whole(served):
    service, mint = served
    text = "x" * 2_000_000  # more than a connection holds at once
    service.instead[mint_service.INFO] = says({"name": text})
    assert (await mint.info())["name"] == text


@pytest.mark.parametrize(
    ("answer", "error", "field", "said"),
    [
        (says([1]), LinkLost, "mint", "answered 200 and nothing of a mint's"),
        (says("x", 500), LinkLost, "mint", "answered 500 and nothing"),
        (lambda do: web.Response(text="<html>", status=502), LinkLost, "mint", "answered 502 and no JSON"),
        (says({"code": 20007, "detail": "no such"}, 400), NotFound, "quote", "no such"),
        (says({"detail": "Not Found"}, 404), NotFound, "quote", "Not Found"),
        (says({"detail": "too many"}, 429), LinkLost, "mint", "answered 429"),
        (says({"code": 11001}, 503), LinkLost, "mint", "answered 503"),
        (says({"code": 11001, "detail": 7}, 400), MintRefused, "mint", r"refuses \(code 11001\)"),
        (says({"code": "x", "detail": "odd"}, 422), MintRefused, "mint", "refuses: odd"),
    ],
)
async def test_an_answer_that_is_no_quote_is_the_error_that_it_means(served, answer, error, field, said):
    service, mint = served
    service.instead[mint_service.MINT_QUOTE] = answer
    with pytest.raises(error, match=said) as told:
        await mint.mint_quote(1)
    assert type(told.value) is error and told.value.field == field


async def test_a_refusal_with_a_secret_in_its_words_shows_none_of_them(served):
    service, mint = served
    service.instead[mint_service.MINT_QUOTE] = says({"code": 11001, "detail": "Secret c0ffee is spent"}, 400)
    with pytest.raises(MintRefused) as refused:
        await mint.mint_quote(1)
    assert refused.value.is_spent and not refused.value.is_signed and "c0ffee" not in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        {"quote": None},
        {"quote": ""},
        {"quote": "x" * 257},
        {"state": "GONE"},
        {"state": None},
        {"amount": -1},
        {"amount": 1.5},
        {"amount": True},
        {"amount": 2**53},
        {"fee_reserve": "2"},
        {"expiry": "soon"},
    ],
)
async def test_a_quote_with_a_malformed_member_is_a_lost_link(served, change):
    service, mint = served
    service.instead[mint_service.MINT_QUOTE] = lambda do: (200, do()[1] | change)
    with pytest.raises(LinkLost) as refused:
        await mint.mint_quote(1)
    assert refused.value.reason in ("its quote is malformed", "a number in its answer is none")


async def test_what_a_quote_need_not_have_is_empty_where_it_is_odd(served):
    service, mint = served
    odd = {"request": 7, "payment_preimage": [], "change": "x", "amount": None}
    service.instead[mint_service.MINT_QUOTE] = lambda do: (200, do()[1] | odd)
    found = await mint.mint_quote(1)
    assert (found.bolt11, found.preimage, found.change, found.amount_sat, found.state) == ("", "", (), 0, "UNPAID")


@pytest.mark.parametrize("quote", ["../info", "a b", "a?b", "ü", "a/b", "a%2f"])
async def test_a_quotes_id_that_would_lead_elsewhere_is_asked_for_nowhere(served, quote):
    service, mint = served
    for ask in (mint.mint_state, mint.melt_state):
        with pytest.raises(BadInput) as refused:
            await ask(quote)
        assert refused.value.field == "quote" and quote not in str(refused.value)
    assert service.asked == []


@pytest.mark.parametrize("value", [None, "x", {}])
async def test_an_answer_without_its_list_is_a_lost_link(served, value):
    service, mint = served
    outputs = blanks(1, service.id)
    for call, name, ask in (
        (mint_service.KEYSETS, "keysets", mint.listed),
        (mint_service.STATES, "states", lambda: mint.states([PROOF])),
        (mint_service.RESTORE, "outputs", lambda: mint.restored(outputs)),
    ):
        service.instead[call] = says({name: value})
        with pytest.raises(LinkLost, match=f"no list of {name}"):
            await ask()


@pytest.mark.parametrize("signatures", [None, [], "x", [{}, {}]])
async def test_a_mint_that_does_not_sign_each_output_once_has_given_nothing(served, signatures):
    service, mint = served
    service.instead[mint_service.SWAP] = says({"signatures": signatures})
    with pytest.raises(BadSignature, match="each output once"):
        await mint.swap([], blanks(1, service.id))


async def test_a_restore_of_outputs_that_were_not_asked_for_brings_none_of_them(served):
    service, mint = served
    own, other = blanks(1, service.id), blanks(1, service.id)
    service._sign([one.as_output() for one in (*own, *other)])
    rows = [one.as_output() for one in (*other, *own)]
    signatures = [service.signed[row["B_"]] for row in rows]
    service.instead[mint_service.RESTORE] = says({"outputs": [*rows, "x"], "signatures": [*signatures, {}]})
    assert [one.secret for one in await mint.restored(own)] == [own[0].secret]


@pytest.mark.parametrize(
    ("nuts", "can"),
    [({"9": {"supported": True}}, True), ({"9": {"supported": 1}}, False), ({"9": 1}, False), ([], False)],
)
async def test_a_mint_supports_what_it_says_in_so_many_words(served, nuts, can):
    service, mint = served
    service.instead[mint_service.INFO] = says({"nuts": nuts})
    assert await mint.supports(9) is can
