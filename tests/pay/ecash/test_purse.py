"""The purse on disk: two processes hold no proof twice, and an operation ends once. Proofs and outputs beside it."""

from __future__ import annotations

import pytest

from nodewire.errors import BadInput, BadSignature, NotAllowed, NotFound, PaymentFailed
from nodewire.nostr.keys import Keys
from nodewire.pay.ecash.proofs import Proof, blanks, check_signature, parse_proof, unblind
from nodewire.pay.ecash.purse import Purse
from tests.pay.wallets.services.mint_service import MintService

ID = "00" * 8


def proof(number, amount_sat=1):
    return Proof(amount_sat, ID, f"secret {number}", "02" + "11" * 32)


@pytest.fixture
def purses(tmp_path):
    """One purse, as two processes have it open, with proofs of 4, 2 and 1 satoshis."""
    both = Purse(tmp_path / "purse"), Purse(tmp_path / "purse")
    with both[0].transaction():
        both[0].end(both[0].begin("swap", [], []), [proof(n, 1 << n) for n in range(3)])
    yield both
    for one in both:
        one.close()


def test_a_proof_that_another_process_holds_is_not_held_twice(purses):
    here, there = purses
    chosen = here.free()[:2]
    with there.transaction():
        there.begin("swap", chosen[1:], [])
    with pytest.raises(PaymentFailed, match="another payment takes this money") as refused, here.transaction():
        here.begin("melt", chosen, [], "quote")
    assert refused.value.field == "wallet"
    assert here.operations("melt") == [] and here.balance_sat == 7 - chosen[1].amount_sat  # all of it is undone


def test_a_proof_is_claimed_by_one_operation_alone(purses):
    here, there = purses
    with there.transaction():
        there.begin_claim([proof(7)], [], "first")
    for twice in ([proof(7)], [proof(8), proof(7)], [proof(0)]):
        with pytest.raises(NotAllowed, match="claimed already") as refused, here.transaction():
            here.begin_claim(twice, [], "second")
        assert refused.value.field == "proof"
    assert [one.quote for one in here.operations("claim")] == ["first"] and here.balance_sat == 7


@pytest.mark.parametrize("spent", [True, False])
def test_an_operation_ends_once_whoever_ends_it(purses, spent):
    here, there = purses
    with here.transaction():
        number = here.begin("swap", here.free(), blanks(7, ID))
    assert (here.balance_sat, here.held_sat) == (0, 7)
    with there.transaction():
        assert there.end(number, [proof(9, 8)], spent=spent)
    with here.transaction():
        assert not here.end(number, [proof(10, 16)], spent=not spent)
    assert (here.balance_sat, here.held_sat) == (8 if spent else 15, 0)
    with pytest.raises(NotFound) as over:
        here.operation(number)
    assert over.value.field == "operation"


@pytest.mark.parametrize("said", [None, "x", [], 7])
def test_what_is_no_object_is_no_proof(said):
    with pytest.raises(BadInput, match="not an object") as refused:
        parse_proof(said)
    assert refused.value.field == "proof"


def test_signatures_without_the_mints_own_proof_are_taken_as_they_are():
    """A proof of the key is checked where it is there (NUT-12); a mint need not give one."""
    mint, outputs = MintService(), blanks(5, ID)
    rows = [{**row, "id": ID} for row in mint._sign([one.as_output() for one in outputs])]
    bare = [{name: value for name, value in row.items() if name != "dleq"} for row in rows]
    with_dleq, without = unblind(outputs, rows, mint.keys), unblind(outputs, bare, mint.keys)
    assert [one.c for one in without] == [one.c for one in with_dleq]
    assert [one.dleq for one in without] == [None, None] and None not in [one.dleq for one in with_dleq]
    with pytest.raises(BadSignature, match="each output once"):
        unblind(outputs, rows[:1], mint.keys)


def test_a_signature_counts_for_its_signer_and_its_digest_alone():
    keys, digest = Keys(b"\x05" * 32), b"\x01" * 32
    signature = keys.sign(digest)
    check_signature(keys.public, digest, signature)
    for public, signed in ((Keys(b"\x06" * 32).public, digest), (keys.public, b"\x02" * 32)):
        with pytest.raises(BadSignature) as refused:
            check_signature(public, signed, signature)
        assert refused.value.field == "signatures" and public[:8] in refused.value.reason
