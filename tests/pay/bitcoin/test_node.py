"""What a Bitcoin node refuses, and answers that are none of a node's: each is the error that its cause asks for."""

from __future__ import annotations

import pytest
from aiohttp import web

from nodewire.errors import BadConfig, BadInput, LinkLost, NotAllowed, NotFound, PaymentFailed
from nodewire.pay.bitcoin import vault as vaults
from nodewire.pay.bitcoin.node import MAX_ANSWER_BYTES, BitcoinNode, ChainOutput
from nodewire.pay.bitcoin.taproot import NUMS
from nodewire.pay.bitcoin.transaction import Outpoint, TransactionOutput
from tests.pay.bitcoin.rpc_node import RpcError, serve
from tests.pay.bitcoin.test_vault import COIN, CUSTOMER, own

AT = Outpoint("11" * 32, 0)
OUTPUT = vaults.key_output(NUMS.hex())


@pytest.fixture
async def rpc():
    async with serve() as rpc:
        yield rpc


@pytest.mark.parametrize("url", ["127.0.0.1:8332", "ftp://u:w@host", "http://127.0.0.1:8332", "http:///wallet"])
def test_a_file_without_a_url_of_user_and_host_names_no_node(url, tmp_path):
    (tmp_path / "node").write_text(url)
    with pytest.raises(BadConfig):
        BitcoinNode.from_file(tmp_path / "node")


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(BadConfig) as refused:
        BitcoinNode.from_file(tmp_path / "none")
    assert refused.value.field == str(tmp_path / "none")
    assert "No such file" in refused.value.reason


async def test_user_and_password_go_in_the_header_and_stand_in_no_text(rpc):
    node = rpc.open("/wallet/own")
    assert await node.network() == "bcrt"
    assert rpc.headers["Authorization"] == "Basic dXNlcjp3b3Jk"
    assert repr(node) == "BitcoinNode(127.0.0.1)"


async def test_a_chain_without_a_name_in_bolt11_is_refused(rpc):
    rpc.answers["getblockchaininfo"] = {"chain": "other" * 20}
    with pytest.raises(LinkLost) as refused:
        await rpc.open().network()
    assert refused.value.reason == f"the node is of chain {('other' * 8)!r}"


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_password_is_not_allowed(status, rpc):
    rpc.answers["getblockchaininfo"] = web.Response(status=status)
    with pytest.raises(NotAllowed, match="user and password"):
        await rpc.open().network()


@pytest.mark.parametrize("text", ["<html>", "[]", "null", '{"result": 1}'])
async def test_what_is_no_nodes_answer_is_a_lost_link(text, rpc):
    rpc.answers["getblockchaininfo"] = web.Response(text=text)
    with pytest.raises(LinkLost, match="nothing of a node's"):
        await rpc.open().network()


async def test_an_answer_beyond_the_bound_is_a_lost_link(rpc):
    rpc.answers["getblockchaininfo"] = web.Response(body=b" " * (MAX_ANSWER_BYTES + 1))
    with pytest.raises(LinkLost) as refused:
        await rpc.open().network()
    assert refused.value.reason == f"the answer is over {MAX_ANSWER_BYTES} bytes"


async def test_a_node_that_is_not_there_is_a_lost_link():
    node = BitcoinNode("http://user:word@127.0.0.1:1")
    with pytest.raises(LinkLost) as refused:
        await node.network()
    assert "word" not in str(refused.value)
    await node.close()


@pytest.mark.parametrize(
    ("method", "code", "error"),
    [
        ("getnewaddress", -18, BadConfig),
        ("getnewaddress", -19, BadConfig),
        ("getnewaddress", -6, PaymentFailed),
        ("getnewaddress", -5, NotFound),
        ("getnewaddress", -8, BadInput),
    ],
)
async def test_a_refusal_is_the_error_of_its_code_in_the_nodes_words(method, code, error, rpc):
    rpc.answers[method] = RpcError(code, "in its words")
    with pytest.raises(error, match="in its words") as refused:
        await rpc.open().new_script()
    assert type(refused.value) is error


async def test_a_refusal_that_is_no_object_is_bad_input(rpc):
    rpc.answers["getnewaddress"] = web.json_response({"result": None, "error": "no"})
    with pytest.raises(BadInput, match="refuses getnewaddress"):
        await rpc.open().new_script()


@pytest.mark.parametrize("value", ["a coin", 0.000000001, None])
async def test_an_output_of_a_malformed_amount_is_a_lost_link(value, rpc):
    rpc.answers["gettxout"] = {"value": value, "scriptPubKey": {"hex": "51"}, "confirmations": 1}
    with pytest.raises(LinkLost, match="about an output is malformed"):
        await rpc.open().output(AT)


async def test_an_output_is_told_and_a_spent_one_is_not_found(rpc):
    rpc.unspent[AT.txid, 0] = (1_234, "51")
    assert await rpc.open().output(AT) == ChainOutput(1_234, b"\x51", 9)
    with pytest.raises(NotFound, match="is spent"):
        await rpc.open().output(Outpoint(AT.txid, 1))


async def test_a_list_of_outputs_without_one_is_a_lost_link(rpc):
    rpc.answers["scantxoutset"] = {"unspents": [{"txid": AT.txid, "vout": 1, "amount": 0.00000007}]}
    assert await rpc.open().unspent(OUTPUT) == {Outpoint(AT.txid, 1): 7}
    rpc.answers["scantxoutset"] = {"success": False}
    with pytest.raises(LinkLost, match="list of outputs"):
        await rpc.open().unspent(OUTPUT)


def sent(**changes):
    said = {"category": "send", "address": OUTPUT.address("bcrt"), "confirmations": 0, "txid": AT.txid, "vout": 0}
    return {**said, "amount": -0.00001, **changes}


async def test_a_payment_is_the_output_that_the_wallets_record_has(rpc):
    rpc.answers |= {"sendtoaddress": AT.txid, "listsinceblock": {"transactions": [sent()]}}
    assert await rpc.open().pay(OUTPUT, 1_000) == AT
    assert ("sendtoaddress", OUTPUT.address("bcrt"), "0.00001") in rpc.asked


@pytest.mark.parametrize(
    "change",
    [
        {"txid": "22" * 32},
        {"amount": -0.00002},
        {"category": "receive"},
        {"address": "bcrt1other"},
        {"confirmations": -1},
        {"abandoned": True},
    ],
)
async def test_a_payment_that_the_wallets_record_lacks_is_a_lost_link(change, rpc):
    rpc.answers |= {"sendtoaddress": AT.txid, "listsinceblock": {"transactions": [sent(**change)]}}
    with pytest.raises(LinkLost) as refused:
        await rpc.open().pay(OUTPUT, 1_000)
    assert refused.value.reason == f"the wallet's record lacks its payment {AT.txid}"


async def test_a_malformed_record_of_payments_is_a_lost_link(rpc):
    rpc.answers["listsinceblock"] = {"transactions": [{}]}
    with pytest.raises(LinkLost, match="list of payments"):
        await rpc.open().paid(OUTPUT)


async def test_a_transaction_that_is_refused_and_unknown_failed_and_one_that_is_known_is_sent(rpc):
    signed = own(300, b"\x51")
    rpc.answers["sendrawtransaction"] = RpcError(-25, "missing inputs")
    with pytest.raises(PaymentFailed, match="missing inputs"):
        await rpc.open().send(signed)
    rpc.unspent[signed.txid, 0] = (99_700, "51")
    assert await rpc.open().send(signed) == signed.txid


async def test_a_transaction_is_known_by_any_of_its_outputs(rpc):
    held = vaults.Vault((CUSTOMER.public,), 1, CUSTOMER.public, 1_900_000_000)
    two = held.spend(COIN, [TransactionOutput(1, b"\x51")] * 2)
    assert not await rpc.open().knows(two)
    rpc.unspent[two.txid, 1] = (1, "51")
    assert await rpc.open().knows(two)


@pytest.mark.parametrize(
    ("said", "sat_vb"), [({}, 2), ([], 2), ({"feerate": 0.00001001}, 2), ({"feerate": 0.00002001}, 3)]
)
async def test_a_fee_rate_is_whole_satoshis_rounded_up_and_never_below_the_least(said, sat_vb, rpc):
    rpc.answers["estimatesmartfee"] = said
    assert await rpc.open().fee_rate(2) == sat_vb
