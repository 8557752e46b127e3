"""Taproot's outputs and signatures, by the vectors of BIP-341 (tests/vectors/bip341.json, its file as it is)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodewire.errors import BadInput
from nodewire.nostr.keys import Keys, verify
from nodewire.pay.bitcoin import taproot
from nodewire.pay.bitcoin.transaction import Outpoint, Transaction, TransactionOutput

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "bip341.json").read_text())
SPENDS = VECTORS["keyPathSpending"][0]


def root_of(tree):
    if tree is None:
        return b""
    if isinstance(tree, dict):
        return taproot.leaf_hash(bytes.fromhex(tree["script"]), tree["leafVersion"])
    return taproot.branch_hash(*map(root_of, tree))


@pytest.mark.parametrize("vector", VECTORS["scriptPubKey"])
def test_an_output_is_the_one_of_the_vector(vector):
    given, expected = vector["given"], vector["expected"]
    internal = bytes.fromhex(given["internalPubkey"])
    root = root_of(given["scriptTree"])
    assert root.hex() == (vector["intermediary"]["merkleRoot"] or "")
    key, is_odd = taproot.tweaked(internal, root)
    assert key.hex() == vector["intermediary"]["tweakedPubkey"]
    whole = taproot.TaprootOutput(internal, (), key, is_odd)
    assert whole.script_pubkey.hex() == expected["scriptPubKey"]
    assert whole.address("bc") == expected["bip350Address"]


@pytest.mark.parametrize("vector", VECTORS["scriptPubKey"])
def test_a_tree_of_two_leaves_or_fewer_gives_the_output_and_its_control_blocks(vector):
    tree = vector["given"]["scriptTree"]
    leaves = [] if tree is None else [tree] if isinstance(tree, dict) else tree
    if any(isinstance(leaf, list) or leaf["leafVersion"] != 192 for leaf in leaves):
        pytest.skip("a deeper tree, or another version of leaves: no bond has one")
    found = taproot.output(
        bytes.fromhex(vector["given"]["internalPubkey"]), [bytes.fromhex(leaf["script"]) for leaf in leaves]
    )
    assert found.script_pubkey.hex() == vector["expected"]["scriptPubKey"]
    blocks = [found.control_block(n).hex() for n in range(len(leaves))]
    assert blocks == vector["expected"].get("scriptPathControlBlocks", [])


def vectors_transaction():
    """The vectors' one transaction, read by hand: nodewire writes transactions and reads none."""
    raw, at = bytes.fromhex(SPENDS["given"]["rawUnsignedTx"]), 5
    inputs, sequences, outputs = [], [], []
    for _ in range(raw[4]):
        inputs.append(Outpoint(raw[at : at + 32][::-1].hex(), int.from_bytes(raw[at + 32 : at + 36], "little")))
        assert raw[at + 36] == 0
        sequences.append(int.from_bytes(raw[at + 37 : at + 41], "little"))
        at += 41
    count, at = raw[at], at + 1
    for _ in range(count):
        size = raw[at + 8]
        outputs.append(TransactionOutput(int.from_bytes(raw[at : at + 8], "little"), raw[at + 9 : at + 9 + size]))
        at += 9 + size
    spent = [
        TransactionOutput(one["amountSats"], bytes.fromhex(one["scriptPubKey"]))
        for one in SPENDS["given"]["utxosSpent"]
    ]
    lock_time = int.from_bytes(raw[at:], "little")
    found = Transaction(tuple(inputs), tuple(spent), tuple(outputs), lock_time, tuple(sequences))
    assert found._stripped() == raw
    return found


def test_what_all_inputs_sign_in_common_is_as_in_the_vectors():
    names = ("hashPrevouts", "hashAmounts", "hashScriptPubkeys", "hashSequences", "hashOutputs")
    found = [one.hex() for one in vectors_transaction().common_hashes()]
    assert found == [SPENDS["intermediary"][name] for name in names]


def test_an_input_with_the_default_hash_type_is_signed_as_in_the_vectors():
    """The one that there is. Of the other hash types nodewire signs none."""
    defaults = [one for one in SPENDS["inputSpending"] if one["given"]["hashType"] == 0]
    assert len(defaults) == 1
    for one in defaults:
        given = one["given"]
        digest = vectors_transaction().sighash(given["txinIndex"])
        assert digest.hex() == one["intermediary"]["sigHash"]
        root = bytes.fromhex(given["merkleRoot"] or "")
        secret = taproot.tweaked_secret(bytes.fromhex(given["internalPrivkey"]), root)
        assert secret.hex() == one["intermediary"]["tweakedPrivkey"]
        public = Keys(secret).public
        assert verify(public, digest, bytes.fromhex(one["expected"]["witness"][0]))
        assert not verify(public, vectors_transaction().sighash(0), bytes.fromhex(one["expected"]["witness"][0]))


@pytest.mark.parametrize("one", SPENDS["inputSpending"])
def test_a_secret_is_tweaked_as_in_the_vectors(one):
    root = bytes.fromhex(one["given"]["merkleRoot"] or "")
    secret = taproot.tweaked_secret(bytes.fromhex(one["given"]["internalPrivkey"]), root)
    assert secret.hex() == one["intermediary"]["tweakedPrivkey"]


@pytest.mark.parametrize("number", [1, 16, 17, 127, 128, 255, 256, 32_767, 32_768, 1_800_000_000, 2**31 - 1])
def test_a_number_is_pushed_in_its_shortest_form(number):
    pushed = taproot.push_number(number)
    if number <= 16:
        assert pushed == bytes([0x50 + number])
    else:
        assert len(pushed) == pushed[0] + 1
        assert int.from_bytes(pushed[1:], "little", signed=True) == number
        assert len(pushed) == 2 or int.from_bytes(pushed[1:-1], "little", signed=True) != number


@pytest.mark.parametrize("key", ["00" * 32, "ff" * 32, "ab"])
def test_what_is_no_key_gives_no_output(key):
    with pytest.raises(BadInput):
        taproot.output(bytes.fromhex(key))


def test_an_address_on_a_network_that_there_is_not_is_refused():
    with pytest.raises(BadInput) as refused:
        taproot.output(taproot.NUMS).address("doge")
    assert (refused.value.field, refused.value.reason) == ("network", "'doge' is none of bc, tb, tbs, bcrt")


def test_three_leaves_are_refused():
    with pytest.raises(BadInput) as refused:
        taproot.output(taproot.NUMS, [b"\x51"] * 3)
    assert refused.value.field == "leaves"


@pytest.mark.parametrize("quorum", [-1, 0, 3])
def test_a_quorum_of_nobody_or_of_more_than_there_are_is_refused(quorum):
    with pytest.raises(BadInput) as refused:
        taproot.multi_a(quorum, [taproot.NUMS] * 2)
    assert refused.value.field == "quorum"


@pytest.mark.parametrize("at", [0, -1, 2**31])
def test_what_is_no_lock_time_is_refused(at):
    with pytest.raises(BadInput) as refused:
        taproot.pk_after(taproot.NUMS, at)
    assert refused.value.field == "after"


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (0xFC, "fc"),
        (0xFD, "fdfd00"),
        (0xFFFF, "fdffff"),
        (0x1_0000, "fe00000100"),
    ],
)
def test_a_size_is_written_by_one_three_or_five_bytes(number, written):
    assert taproot.compact_size(number).hex() == written
