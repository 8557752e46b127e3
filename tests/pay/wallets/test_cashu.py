"""The wallet of ecash: a crash between any two steps loses nothing, no secret is shown, a lie is found out."""

from __future__ import annotations

import logging

import pytest

from nodewire.errors import BadConfig, BadInput, BadSignature, LinkLost, NodewireError, NotAllowed
from nodewire.pay.ecash import blind
from nodewire.pay.ecash.mint import Mint, _checked
from nodewire.pay.ecash.proofs import Lock, Proof, parse_proof, sig_all_digest, split, unblind_one
from nodewire.pay.lightning.probe import probe
from nodewire.pay.wallets.cashu import CashuWallet
from tests.pay.mint_process import fund, needs_mint, run_mint


class Killed(Exception):
    """The process died here."""


@pytest.fixture
async def purse(mint, tmp_path):
    """`await purse(name, sat)`: a wallet at the mint; the same name is the same purse, as a new process opens it."""
    opened = []

    async def open_one(name, sat=0):
        wallet = CashuWallet(mint.url, tmp_path / f"{name}.purse")
        opened.append(wallet)
        await fund(mint, wallet, sat * 1_000)
        return wallet

    yield open_one
    for wallet in opened:
        await wallet.close()


def dies(monkeypatch, wallet, step, when, after=0):
    """The process dies at a step: before the mint is asked, or when its answer has come and is not yet written."""
    real, left = getattr(wallet._mint, step), [after]

    async def method(*args, **options):
        if left[0]:
            left[0] -= 1
            return await real(*args, **options)
        if when == "after":
            await real(*args, **options)
        raise Killed

    monkeypatch.setattr(wallet._mint, step, method)


@needs_mint
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["melt_quote", "active", "swap", "melt"])
async def test_a_payer_that_dies_at_any_step_loses_nothing_and_pays_once(purse, monkeypatch, step, when):
    payer, payee = await purse("payer", 1_000), await purse("payee", 10)
    invoice = await payee.invoice(21_000, description="x", expiry_s=600)
    dies(monkeypatch, payer, step, when)
    with pytest.raises(Killed):
        await payer.pay(invoice.bolt11, max_fee_msat=10_000)
    again = await purse("payer")
    ended = await again.pay(invoice.bolt11, max_fee_msat=10_000)
    paid_msat = 21_000 if ended.state == "settled" else 0
    assert ended.state == ("failed" if (step, when) == ("melt", "before") else "settled")
    assert await again.balance_msat() == 1_000_000 - paid_msat
    assert await payee.balance_msat() == 10_000 + paid_msat
    assert (await again.lookup(invoice.payment_hash, "out")).state == ended.state
    other = await payee.invoice((1_000_000 - paid_msat), description="all that is left", expiry_s=600)
    assert (await again.pay(other.bolt11, max_fee_msat=10_000)).state == "settled"


@needs_mint
@pytest.mark.parametrize("step", ["swap", "states", "melt_state"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_payer_that_dies_as_it_takes_a_payment_back_loses_nothing(purse, monkeypatch, step, when):
    payer, payee = await purse("payer", 1_000), await purse("payee")
    invoice = await payee.invoice(21_000, description="x", expiry_s=600)
    dies(monkeypatch, payer, "melt", "before")
    with pytest.raises(Killed):
        await payer.pay(invoice.bolt11, max_fee_msat=10_000)
    second = await purse("payer")
    dies(monkeypatch, second, step, when)
    with pytest.raises(Killed):
        await second.lookup(invoice.payment_hash, "out")
    third = await purse("payer")
    assert (await third.lookup(invoice.payment_hash, "out")).state == "failed"
    assert await third.balance_msat() == 1_000_000
    assert (await third.pay(invoice.bolt11, max_fee_msat=10_000)).state == "failed"


@needs_mint
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["mint_state", "active", "mint"])
async def test_a_payee_that_dies_at_any_step_has_its_ecash_once(purse, mint, monkeypatch, step, when):
    payee = await purse("payee")
    invoice = await payee.invoice(77_000, description="x", expiry_s=600)
    mint.pay(payee._purse.invoice(invoice.payment_hash).quote)
    dies(monkeypatch, payee, step, when)
    with pytest.raises(Killed):
        await payee.balance_msat()
    again = await purse("payee")
    for _ in range(2):
        assert await again.balance_msat() == 77_000
    assert (await again.lookup(invoice.payment_hash, "in")).state == "settled"


@needs_mint
async def test_an_answer_that_is_lost_is_no_failure_and_no_second_payment(purse, monkeypatch):
    payer, payee = await purse("payer", 1_000), await purse("payee")
    invoice = await payee.invoice(21_000, description="x", expiry_s=600)
    real = payer._mint.melt

    async def lost(*args, **options):
        await real(*args, **options)
        raise LinkLost("mint", "the answer was lost")

    monkeypatch.setattr(payer._mint, "melt", lost)
    assert (await payer.pay(invoice.bolt11, max_fee_msat=10_000)).state == "settled"

    async def silent(*args, **options):
        raise LinkLost("mint", "it does not answer")

    other = await payee.invoice(22_000, description="x", expiry_s=600)
    for step in ("melt", "melt_state"):
        monkeypatch.setattr(payer._mint, step, silent)
    for _ in range(2):
        assert (await payer.pay(other.bolt11, max_fee_msat=10_000)).state == "pending"
    assert (await payer.lookup(other.payment_hash, "out")).state == "pending"
    back = await purse("payer")
    assert (await back.lookup(other.payment_hash, "out")).state == "failed"
    assert await back.balance_msat() == 979_000


@needs_mint
async def test_no_secret_is_in_a_repr_an_error_or_a_log(purse, caplog):
    caplog.set_level(logging.DEBUG)
    payer = await purse("payer", 100)
    invoice = await payer.invoice(1_000, description="x", expiry_s=600)
    issued = payer._purse.invoice(invoice.payment_hash)
    proofs = payer._purse.free()
    secrets = [issued.quote, *(one.secret for one in proofs), *(one.c for one in proofs)]
    told = [repr(payer), repr(issued), repr(proofs), repr(await payer._mint.mint_state(issued.quote)), caplog.text]
    for asked in (
        payer._mint.mint(issued.quote, []),
        payer._mint.swap([proofs[0].as_input()], []),
        payer._mint.mint_state("no-such-quote"),
    ):
        with pytest.raises(NodewireError) as refused:
            await asked
        told.append(f"{refused.value!r} {refused.value.as_dict()}")
    assert not [secret for secret in secrets if any(secret in text for text in told)]


@needs_mint
async def test_what_the_wallet_lacks_is_told_with_what_it_means(purse):
    info, found = await probe(await purse("payer"))
    lacks = {one.ability: one.means for one in found if one.state == "lacks"}
    assert set(lacks) == {"invoice", "hold"} and "description's hash" in lacks["invoice"]
    assert not [one for one in found if one.state == "fails"] and not info.has_preimages


@needs_mint
async def test_a_purse_is_opened_at_its_mint_and_at_no_other(mint, tmp_path):
    wallet, token = await CashuWallet.open_account(mint.url, "x")
    await wallet.close()
    file = tmp_path / "wallet.token"
    file.write_text(token + "\n")
    one, two = CashuWallet.from_file(mint.url, file), CashuWallet.from_file(mint.url, file)
    assert (await one.info()).id == (await two.info()).id
    assert (tmp_path / "wallet.purse").stat().st_mode & 0o777 == 0o600
    await one.close()
    await two.close()
    with pytest.raises(BadConfig, match="another mint"):
        CashuWallet.from_file("http://127.0.0.1:1", file)
    file.write_text("something else")
    for path in (None, file, tmp_path / "none"):
        with pytest.raises(BadConfig, match="--kind cashu"):
            CashuWallet.from_file(mint.url, path)
    with pytest.raises(NotAllowed):
        await CashuWallet.open_account(mint.url, "x", 5_000)


# NUT-00, 11 and 12, by the vectors of https://github.com/cashubtc/nuts/tree/main/tests


@pytest.mark.parametrize(
    ("message", "point"),
    [
        ("00" * 32, "024cce997d3b518f739663b757deaec95bcd9473c30a14ac2fd04023a739d1a725"),
        ("00" * 31 + "01", "022e7158e11c9506f1aa4248bf531298daa7febd6194f003edcd9b93ade6253acf"),
        ("00" * 31 + "02", "026cdbe15362df59cd1dd3c9c11de8aedac2106eca69236ecd9fbe117af897be4f"),
    ],
)
def test_a_secret_has_the_point_of_the_vectors(message, point):
    assert blind.hash_to_curve(bytes.fromhex(message)) == point


@pytest.mark.parametrize(
    ("x", "r", "b"),
    [
        (
            "d341ee4871f1f889041e63cf0d3823c713eea6aff01e80f1719f08f9e5be98f6",
            "99fce58439fc37412ab3468b73db0569322588f62fb3a49182d67e23d877824a",
            "033b1a9737a40cc3fd9b6af4b723632b76a67a36782596304612a6c2bfb5197e6d",
        ),
        (
            "f1aaf16c2239746f369572c0784d9dd3d032d952c2d992175873fb58fae31a60",
            "f78476ea7cc9ade20f9e05e58a804cf19533f03ea805ece5fee88c8e2874ba50",
            "029bdf2d716ee366eddf599ba252786c1033f47e230248a4612a5670ab931f1763",
        ),
    ],
)
def test_a_message_is_blinded_as_in_the_vectors(x, r, b):
    assert blind.blinded(bytes.fromhex(x), bytes.fromhex(r)) == b


PROOF = {
    "amount": 1,
    "id": "00882760bfa2eb41",
    "secret": "daf4dd00a2b68a0858a80450f52c8a7d2ccf87d375e43e216e0c571f089f63e9",
    "C": "024369d2d22a80ecf78f3937da9d5f30c1b9f74f0c32684d583cca0fa6a61cdcfc",
    "dleq": {
        "e": "b31e58ac6527f34975ffab13e70a48b6d2b0d35abc4b03f0151f09ee1a9763d4",
        "s": "8fbae004c59e754d71df67e392b6ae4e29293113ddc2ec86592a0431d16306d8",
        "r": "a6d13fcd7a18442e6076f5e1e7c887ad5de40a019824bdfa9fe740d302e8d861",
    },
}
G = "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"


def test_a_proof_of_the_mints_key_is_checked_as_in_the_vectors():
    good = parse_proof(PROOF)
    assert good.as_dict() == PROOF
    e, s, r = good.dleq
    blind.check_proof(good.secret.encode(), good.c, r, G, e, s)
    for wrong in ((e, e, r), (s, s, r), (e, s, s), ("00" * 32, s, r), (e, "ff" * 32, r)):
        with pytest.raises(BadSignature):
            blind.check_proof(good.secret.encode(), good.c, wrong[2], G, *wrong[:2])


def test_what_signatures_of_a_swap_sign_is_as_in_the_vectors():
    secret = (
        '["P2PK",{"nonce":"c7f280eb55c1e8564e03db06973e94bc9b666d9e1ca42ad278408fe625950303","data":"030d8acedfe072c9fa'
        '449a1efe0817157403fbec460d8e79f957966056e5dd76c1","tags":[["sigflag","SIG_ALL"]]}]'
    )
    c = "02c97ee3d1db41cf0a3ddb601724be8711a032950811bf326f8219c50c4808d3cd"

    class Output:
        amount_sat, b = 2, "038ec853d65ae1b79b5cdbc2774150b2cb288d6d26e12958a16fb33c32d9a86c39"

    digest = sig_all_digest([Proof(2, "00bfa73302d12ffd", secret, c)], [Output])
    assert digest.hex() == "de7f9e3ca0fcc5ed3258fcf83dbf1be7fa78a5ed6da7bf2aa60d61e9dc6eb09a"


@pytest.mark.parametrize(
    "change",
    [
        {"amount": 3},
        {"amount": 0},
        {"amount": True},
        {"amount": 2**60},
        {"id": "zz"},
        {"id": None},
        {"secret": ""},
        {"secret": "x" * 5_000},
        {"secret": 7},
        {"C": "02"},
        {"C": None},
        {"dleq": {"e": "1"}},
    ],
)
def test_what_is_no_proof_is_refused_by_its_field_and_shows_no_secret(change):
    with pytest.raises(BadInput) as refused:
        parse_proof({**PROOF, **change})
    assert PROOF["secret"] not in f"{refused.value!r}"


def test_a_lock_is_read_as_it_was_written_and_no_other_is_taken_for_it():
    one = Lock(("11" * 32, "22" * 32, "33" * 32), 2, "44" * 32, 1_900_000_000)
    one.check(one.secret("55" * 32))
    for other in (
        Lock(("11" * 32, "22" * 32, "33" * 32), 1, "44" * 32, 1_900_000_000),
        Lock(("11" * 32, "22" * 32, "66" * 32), 2, "44" * 32, 1_900_000_000),
        Lock(("11" * 32, "22" * 32, "33" * 32), 2, "44" * 32, 1_800_000_000),
        Lock(("11" * 32, "22" * 32, "33" * 32), 2, "44" * 32, 1_900_000_000, is_sig_all=False),
    ):
        with pytest.raises(BadInput):
            one.check(other.secret("55" * 32))
    for text in ("x", "[]", '["P2PK",{"nonce":"1"}]', "[1,2]"):
        with pytest.raises(BadInput):
            one.check(text)


def test_an_amount_is_split_into_powers_of_two():
    for amount in (0, 1, 21, 1_000, 2**40 + 5):
        assert sum(split(amount)) == amount and len(set(split(amount))) == len(split(amount))
    with pytest.raises(BadInput):
        split(-1)


def test_a_keyset_whose_id_is_not_its_keys_is_refused():
    with pytest.raises(BadSignature, match="is not the id of the keys"):
        _checked("00ffffffffffffff", {"1": G}, {"active": True})
    with pytest.raises(BadSignature):
        _checked("00ffffffffffffff", {"1": "zz" * 33}, {})
    with pytest.raises(BadSignature):
        _checked("00ffffffffffffff", {str(n): G for n in range(200)}, {})


def test_a_mint_that_signs_another_amount_or_by_another_key_is_found_out():
    output = type("B", (), {"amount_sat": 2, "id": "00" * 8, "secret": "x", "r": b"\1" * 32, "b": G})()
    for said in (
        {"amount": 4, "id": "00" * 8, "C_": G},
        {"amount": 2, "id": "11" * 8, "C_": G},
        {"amount": 2, "id": "00" * 8, "C_": G, "dleq": {"e": "11" * 32, "s": "22" * 32}},
        {"amount": 3, "id": "00" * 8, "C_": G},
        None,
    ):
        with pytest.raises(BadSignature):
            unblind_one(output, said, {2: G, 4: G})

    with pytest.raises(BadConfig):
        Mint("mint.example")


@needs_mint
async def test_a_mint_that_takes_fees_has_them_and_no_more(tmp_path):
    """Every sum from one satoshi on, out of a purse of whatever pieces are left; nothing is lost beside the fees."""
    with run_mint(
        tmp_path, MINT_INPUT_FEE_PPK="100", FAKEWALLET_BRR="FALSE", FAKEWALLET_PAY_INVOICE_STATE="FAILED"
    ) as dear:
        payer, payee = CashuWallet(dear.url, tmp_path / "payer.purse"), CashuWallet(dear.url, tmp_path / "payee.purse")
        await fund(dear, payer, 1_000_000)
        for sat in (1, 2, 3, 21, 64, 127, 255):
            invoice = await payee.invoice(sat * 1_000, description="x", expiry_s=600)
            before_msat = await payer.balance_msat()
            paid = await payer.pay(invoice.bolt11, max_fee_msat=10_000)
            assert paid.state == "settled", paid
            assert await payer.balance_msat() == before_msat - paid.amount_msat - paid.fee_msat
            assert 0 <= paid.fee_msat <= 4_000
        assert await payee.balance_msat() == sum((1, 2, 3, 21, 64, 127, 255)) * 1_000
        before_msat = await payer.balance_msat()
        refused = await payee.invoice(5_000, description="x", expiry_s=600)
        assert (await payer.pay(refused.bolt11, max_fee_msat=0)).state == "failed"
        assert await payer.balance_msat() == before_msat
        await payer.close()
        await payee.close()
