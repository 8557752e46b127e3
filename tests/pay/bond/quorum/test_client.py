"""The client of a registrar, against answers that are none, and where a step of its own is missing."""

from __future__ import annotations

import orjson
import pytest
from aiohttp import web

import tests.pay.bond_market as bm
from nodewire.errors import BadConfig, BadInput, LinkLost, NotAllowed, NotFound, PaymentFailed
from nodewire.nostr.keys import Keys
from nodewire.pay.bond.quorum.client import QuorumBondHolder
from nodewire.pay.bond.quorum.terms import MAX_COINS, terms_of
from nodewire.pay.bond.quorum.vault_custody import VaultCustody, vault_of
from tests.pay.bitcoin.rpc_node import serve
from tests.pay.bond.quorum.market import CLOSING_S, COMMITTEE, ORACLES, Bonds

UNTIL_S, AMOUNT_MSAT = 1_900_000_000, 100_000_000
FILE_KEYS = Keys.generate()


class FalseRegistrar:
    """Answers what `answers` has: (status, document or text) by "METHOD path"; "*" where it has nothing."""

    def __init__(self):
        self.answers, self.asked = {}, []

    async def handle(self, request):
        name = f"{request.method} {request.path}"
        self.asked.append(name)
        status, said = self.answers.get(name) or self.answers["*"]
        return web.Response(status=status, body=said if isinstance(said, bytes) else orjson.dumps(said))


@pytest.fixture
async def rpc():
    async with serve() as rpc:
        yield rpc


@pytest.fixture
async def bonds(rpc, tmp_path):
    async with Bonds(tmp_path, lambda who: VaultCustody(rpc.open(), 1)) as bonds:
        yield bonds


@pytest.fixture
async def registrar():
    registrar, app = FalseRegistrar(), web.Application()
    app.router.add_route("*", "/{path:.*}", registrar.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    registrar.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield registrar
    await runner.cleanup()


@pytest.fixture
async def holder(registrar, rpc, tmp_path):
    custody = VaultCustody(rpc.open(), 1)
    holder = QuorumBondHolder(registrar.url, custody, tmp_path / "own.db", committee=COMMITTEE.digest())
    yield holder
    await holder.close()


def told_bond(state="locked", terms=None, **changes):
    terms = terms or terms_of(COMMITTEE, FILE_KEYS.public, UNTIL_S, "first")
    said = {"id": terms.id, "provider": terms.provider, "amount_msat": AMOUNT_MSAT, "remainder_msat": AMOUNT_MSAT}
    said |= {"state": state, "until_s": UNTIL_S, "stated_until_s": 0, "frees_at_s": 0, "cases": []}
    return {**said, "terms": terms.model_dump(mode="json"), "coins": [], **changes}


def told_holder(**changes):
    return {"kind": "vault", "closing_s": CLOSING_S, **changes}


REFUSED = (403, {"code": "not-allowed", "field": "bond", "reason": "slashed"})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((502, b"<html>"), "answered 502 and no JSON"),
        ((200, []), "answered 200 and nothing of its own"),
        ((200, {}), "its answer lacks 'id'"),
        ((200, told_bond(cases=None)), "its answer lacks"),
        ((500, {"code": "of-another-kind", "reason": "odd"}), "odd"),
    ],
    ids=["a page", "a list", "nothing", "no cases", "an unknown code"],
)
async def test_what_is_no_registrars_answer_is_a_lost_link(answer, reason, registrar, holder):
    registrar.answers["*"] = answer
    with pytest.raises(LinkLost) as refused:
        await holder.bond(FILE_KEYS.public)
    assert refused.value.field == "holder" and refused.value.reason.startswith(reason)


async def test_a_refusal_is_the_error_of_its_code_with_field_and_reason(registrar, holder):
    registrar.answers["*"] = REFUSED
    with pytest.raises(NotAllowed) as refused:
        await holder.bond(FILE_KEYS.public)
    assert (refused.value.field, refused.value.reason) == ("bond", "slashed")


async def test_an_answer_that_comes_in_many_pieces_is_read_whole(registrar, holder):
    registrar.answers["*"] = (200, told_bond(coins=["x" * 1_000] * 2_000))
    assert (await holder.bond(FILE_KEYS.public)).amount_msat == AMOUNT_MSAT


@pytest.mark.parametrize(("url", "error"), [("http://127.0.0.1:1", LinkLost), ("no url", BadConfig)])
async def test_a_registrar_that_is_not_there_and_what_is_no_url_are_told_apart(url, error, rpc):
    holder = QuorumBondHolder(url, VaultCustody(rpc.open()))
    with pytest.raises(error):
        await holder.bond(FILE_KEYS.public)
    await holder.close()


@pytest.mark.parametrize(
    "change", [{"public": 7}, {"unbonding_s": -1}, {"statement_s": True}, {"custodian": None}, {"unit_msat": "1"}]
)
async def test_a_holder_that_tells_a_field_of_another_type_is_a_lost_link(change, registrar, holder):
    said = {"public": "ab", "committee": "cd", "unbonding_s": 1, "statement_s": 1, "custodian": ""}
    registrar.answers["*"] = (200, said)
    assert (await holder.holder()).unit_msat == 1
    registrar.answers["*"] = (200, {**said, **change})
    with pytest.raises(LinkLost, match=f"lacks {next(iter(change))}"):
        await holder.holder()


# What locks nothing


@pytest.mark.parametrize(
    ("said", "committee", "error", "field"),
    [
        (told_holder(), bm.COMMITTEE, BadConfig, "holder.url"),
        (told_holder(kind="ecash"), COMMITTEE, BadConfig, "holder.kind"),
        (told_holder(kind=None), COMMITTEE, LinkLost, "holder"),
        (told_holder(closing_s=30 * 86_400 + 1), COMMITTEE, BadInput, "closing_s"),
    ],
    ids=["another committee", "another kind", "no kind", "back too late"],
)
async def test_coins_are_locked_by_no_other_terms_than_the_role_knows(
    said, committee, error, field, registrar, holder, rpc
):
    registrar.answers = {"GET /v1/holder": (200, said), "GET /v1/committee": (200, committee.document())}
    with pytest.raises(error) as refused:
        await holder.lock(FILE_KEYS, AMOUNT_MSAT, UNTIL_S, key="first")
    assert (refused.value.field, rpc.asked) == (field, [])


@pytest.mark.parametrize("amount_msat", [0, -1_000, 1_500])
async def test_a_bond_that_is_not_of_whole_satoshis_is_refused(amount_msat, registrar, holder, rpc):
    registrar.answers = {"GET /v1/holder": (200, told_holder()), "GET /v1/committee": (200, COMMITTEE.document())}
    with pytest.raises(BadInput) as refused:
        await holder.lock(FILE_KEYS, amount_msat, UNTIL_S, key="first")
    assert (refused.value.field, rpc.asked) == ("amount_msat", [])


async def test_without_a_file_no_coins_are_locked(registrar, rpc):
    registrar.answers = {"GET /v1/holder": (200, told_holder()), "GET /v1/committee": (200, COMMITTEE.document())}
    holder = QuorumBondHolder(registrar.url, VaultCustody(rpc.open()), committee=COMMITTEE.digest())
    with pytest.raises(BadConfig) as refused:
        await holder.lock(FILE_KEYS, AMOUNT_MSAT, UNTIL_S, key="first")
    assert (refused.value.field, rpc.asked) == ("holder.file", [])
    await holder.close()


async def test_a_raise_by_nothing_or_to_a_later_end_or_of_a_bond_that_is_over_locks_no_coins(registrar, holder, rpc):
    path = f"GET /v1/bonds/{FILE_KEYS.public}"
    registrar.answers[path] = (200, told_bond())
    assert (await holder.top_up(FILE_KEYS, 0, UNTIL_S, key="more")).amount_msat == AMOUNT_MSAT
    with pytest.raises(NotAllowed, match="when it was locked for") as refused:
        await holder.top_up(FILE_KEYS, 1_000, UNTIL_S + 1, key="more")
    assert refused.value.field == "until_s"
    registrar.answers[path] = (200, told_bond("unbonding"))
    with pytest.raises(NotAllowed, match="unbonding"):
        await holder.top_up(FILE_KEYS, 1_000, UNTIL_S, key="more")
    assert (set(registrar.asked), rpc.asked) == ({path}, [])


# What comes back


async def test_a_release_that_nobody_answers_and_that_is_not_due_is_a_lost_link(registrar, holder):
    registrar.answers["*"] = (502, b"")
    with pytest.raises(LinkLost):
        await holder.release(FILE_KEYS)


async def test_a_release_that_is_refused_though_the_bond_is_back_is_none_and_any_other_is(registrar, holder):
    registrar.answers = {"POST /v1/bonds/release": REFUSED}
    registrar.answers[f"GET /v1/bonds/{FILE_KEYS.public}"] = (200, told_bond("slashed"))
    with pytest.raises(NotAllowed, match="slashed"):
        await holder.release(FILE_KEYS)
    bond = told_bond("released")
    registrar.answers[f"GET /v1/bonds/{FILE_KEYS.public}"] = (200, bond)
    registrar.answers[f"GET /v1/closings/{bond['id']}"] = (200, {"payments": []})
    assert (await holder.release(FILE_KEYS)).state == "released"


async def test_a_closing_that_is_malformed_pays_nothing(registrar, holder, rpc):
    bond = told_bond("released")
    registrar.answers = {"POST /v1/bonds/release": (200, bond)}
    registrar.answers[f"GET /v1/closings/{bond['id']}"] = (200, {"payments": [[FILE_KEYS.public, "many"]], "left": {}})
    with pytest.raises(LinkLost, match="its closing is malformed"):
        await holder.release(FILE_KEYS)
    assert rpc.asked == []


async def test_a_bond_that_was_begun_and_never_paid_for_is_forgotten_in_the_providers_own_time(rpc, bonds):
    rpc.answers |= {"listsinceblock": {"transactions": []}, "sendtoaddress": None}
    holder, until_s = bonds.client("provider"), int(bonds.clock()) + 1_000
    with pytest.raises(LinkLost):
        await holder.lock(FILE_KEYS, AMOUNT_MSAT, until_s, key="first")
    assert holder._db.execute("SELECT count(*) FROM deposits").fetchone() == (1,)
    bonds.clock.ahead_s += 100_000
    with pytest.raises(NotFound, match="never had a bond"):
        await holder.release(FILE_KEYS)
    assert holder._db.execute("SELECT count(*) FROM deposits").fetchone() == (0,)


async def test_coins_that_the_oracles_have_closed_are_no_refund_and_the_registrar_is_asked(rpc, bonds):
    holder, until_s = bonds.client("provider"), int(bonds.clock()) + 1_000
    vault = vault_of(terms_of(COMMITTEE, FILE_KEYS.public, until_s, "first", closing_s=CLOSING_S))
    payment = {"category": "send", "address": vault.output.address("bcrt"), "confirmations": 9, "txid": "11" * 32}
    rpc.answers["listsinceblock"] = {"transactions": [{**payment, "vout": 0, "amount": -0.001}]}
    rpc.unspent["11" * 32, 0] = (100_000, vault.output.script_pubkey.hex())
    bond = await holder.lock(FILE_KEYS, AMOUNT_MSAT, until_s, key="first")
    assert (bond.state, bond.amount_msat) == ("locked", AMOUNT_MSAT)
    assert await holder.lock(FILE_KEYS, AMOUNT_MSAT, until_s, key="first") == bond
    rpc.unspent.clear()
    rpc.answers["getblockchaininfo"] = {"chain": "regtest", "mediantime": vault.refund_at_s}
    bonds.clock.ahead_s += 100_000
    assert (await holder.release(FILE_KEYS)).state == "unbonding"
    assert holder._db.execute("SELECT count(*) FROM coins").fetchone() == (0,)


# What an oracle is told


@pytest.mark.parametrize("said", [{}, {"closings": None}, {"closings": {}}])
async def test_an_answer_without_closings_is_a_lost_link(said, registrar, holder):
    registrar.answers["*"] = (200, said)
    with pytest.raises(LinkLost, match="no closings"):
        await holder.cosign(ORACLES[0], COMMITTEE, lambda key: frozenset())


async def test_what_an_oracle_has_signed_it_signs_no_more(registrar, holder):
    registrar.answers["*"] = (200, {"closings": [{"signed_by": [ORACLES[0].public]}]})
    assert await holder.cosign(ORACLES[0], COMMITTEE, lambda key: frozenset()) == 0
    with pytest.raises(BadInput, match="terms"):
        await holder.cosign(ORACLES[1], COMMITTEE, lambda key: frozenset())
    assert set(registrar.asked) == {"GET /v1/closings"}


async def test_a_settled_case_that_lacks_a_field_is_a_lost_link(registrar, holder):
    registrar.answers["*"] = (200, {"case": "ab"})
    with pytest.raises(LinkLost, match="its answer lacks 'request'"):
        await holder.case("ab" * 32)


async def test_a_claim_before_the_closing_waits_and_one_of_nothing_is_refused(registrar, holder):
    settled = {"case": "ab", "request": "cd", "outcome": "fail", "culprit": "ef", "slashes": True, "bond": "12" * 32}
    settled |= {"payouts": {bm.CUSTOMER.public: 1_000}, "refused": "", "due": {}}
    missing = (404, {"code": "not-found", "field": "closing", "reason": "none"})
    registrar.answers = {"GET /v1/cases/ab": (200, settled), "*": missing}
    with pytest.raises(PaymentFailed, match="when its time is over"):
        await holder.claim(bm.CUSTOMER, "ab")
    with pytest.raises(NotAllowed, match="gives this key nothing"):
        await holder.claim(bm.STRANGER, "ab")


# What the registrar's server refuses


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/bonds/raise", {}, "key"),
        ("/v1/bonds/raise", {"key": ""}, "key"),
        ("/v1/bonds/raise", {"key": "k" * 65}, "key"),
        ("/v1/bonds/raise", {"key": "k"}, "coins"),
        ("/v1/bonds/raise", {"key": "k", "coins": []}, "coins"),
        ("/v1/bonds/raise", {"key": "k", "coins": [1]}, "coins"),
        ("/v1/bonds/raise", {"key": "k", "coins": [{}] * (MAX_COINS + 1)}, "coins"),
        ("/v1/bonds", {"coins": [{}]}, "terms"),
        (f"/v1/closings/{'00' * 32}", {}, "signatures"),
        (f"/v1/closings/{'00' * 32}", {"signatures": ["AB" * 64]}, "signatures"),
        (f"/v1/closings/{'00' * 32}", {"signatures": ["ab"]}, "signatures"),
        (f"/v1/closings/{'00' * 32}", {"signatures": ["ab" * 64] * 65}, "signatures"),
        ("/v1/closings/00", {"signatures": []}, "bond"),
    ],
)
async def test_a_malformed_request_is_refused_by_its_field(path, body, field, bonds):
    with pytest.raises(BadInput) as refused:
        await bonds.client("any")._ask("POST", path, body, FILE_KEYS)
    assert refused.value.field == field
    with pytest.raises(NotAllowed):
        await bonds.client("any")._ask("POST", path, body)
