"""tests/vectors/examples1.json: each event is signed and read as what it is, each document has its digest or seal."""

import hashlib
import json

import numpy as np
import pytest
import torch

from nodewire.errors import BadEvent, BadInput
from nodewire.nostr import event as events
from nodewire.nostr.keys import verify
from nodewire.nostr.nips import nip44, nip61
from nodewire.pay.nutzaps import authorship
from nodewire.protocol.encoding import canonical
from nodewire.protocol.job import feedback, result
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.feedback import ErrorDetail
from nodewire.protocol.job.request import Ticket, content_of
from nodewire.protocol.job.result import ResultDetails
from nodewire.protocol.job.share_statement import ShareStatement
from nodewire.protocol.market import bond, splice_ad
from nodewire.protocol.market.static_swarm import RollCall, Swarm
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification import complaint, sample
from nodewire.training.protocol import audit, outer_step, round_close, trainer_ad
from nodewire.training.protocol import result as delivery
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.result import DeliveryDetails
from nodewire.training.protocol.round import RoundTicket
from nodewire.weights import mxint8
from nodewire.wire.evidence import pull
from nodewire.wire.evidence.pull import Want
from nodewire.wire.nat.offer import Offer
from nodewire.wire.transport import identity
from tests.protocol import make_examples

VECTORS = json.loads(make_examples.VECTORS.read_text())


def test_the_committed_file_comes_out_the_same():
    assert make_examples.text() == make_examples.VECTORS.read_text()


def test_a_statement_of_shares_is_its_customers_over_the_bytes_that_are_given():
    vector = VECTORS["shares"]
    said = ShareStatement.from_document(vector["document"])
    said.check()
    digest = canonical.tagged_hash("nodewire/shares/1", bytes.fromhex(vector["signed_bytes"]))
    assert digest.hex() == vector["hash"]
    assert verify(said.customer, digest, bytes.fromhex(said.sig))
    assert dict(said.by_chunk()) == {4: 3, 5: 3, 6: 4}


@pytest.fixture
def signed():
    told = {name: one for name, one in VECTORS.items() if isinstance(one, dict) and "sig" in one}
    return {name: events.parse(json.dumps(event)) for name, event in told.items()}


def _opened(event):
    key = nip44.conversation_key(make_examples.CUSTOMER, event.pubkey)
    return nip44.decrypt(event.content, key)


def test_a_ticket_names_its_input_and_has_its_seal():
    vector = VECTORS["ticket"]
    ticket = Ticket.from_document(vector["document"])
    assert ticket.seal() == vector["seal"]
    prompt = bytes.fromhex(vector["prompt"])
    assert ticket.inputs == (("prompt", 0, content_of(Frame("prompt", 0, (Array("uint8", (5,), prompt),)))),)


def test_a_claim_carries_the_drivers_close(signed):
    read = feedback.parse(signed["payment_required"])
    assert read.due is not None
    close = read.due.close
    assert isinstance(close, Close)
    close.check(read.provider)


def test_what_is_said_to_the_customer_alone_is_opened_by_its_key(signed):
    assert ErrorDetail.parse(_opened(signed["error"])) == ErrorDetail.from_document(VECTORS["error_said"])
    assert feedback.parse(signed["error"]).text == "bad-input"
    assert ResultDetails.parse(_opened(signed["result"])) == ResultDetails.from_document(VECTORS["result_said"])
    assert len(result.parse(signed["result"]).roots) == 2


def test_a_drawn_sample_has_its_name(signed):
    assert sample.parse(signed["sampled"]).samples[0].key == VECTORS["sample_key"]


def test_a_complaint_has_the_name_of_its_case(signed):
    assert complaint.parse(signed["complaint"]).key == VECTORS["complaint_case"]


def test_a_bonds_statement_is_read(signed):
    assert bond.parse(signed["bond"]).amount_msat == 5_000_000


def test_a_nutzap_is_its_authors_and_has_its_payment_hash(signed):
    info, nutzap = nip61.parse_info(signed["nutzap_info"]), nip61.parse(signed["nutzap"])
    nip61.check(nutzap, info)
    paid = VECTORS["nutzap_payment"]
    assert authorship.is_bound(nutzap) and authorship.payment_hash(nutzap) == paid["payment_hash"]
    assert hashlib.sha256(bytes.fromhex(paid["preimage"])).hexdigest() == paid["payment_hash"]


def test_a_pulls_job_follows_from_its_want():
    vector = VECTORS["want"]
    want = Want.from_document(vector["document"])
    assert pull._job(want, vector["puller"], vector["holder"], bytes.fromhex(vector["nonce"])) == vector["job"]


def test_a_splice_is_read_and_asked(signed):
    ad = splice_ad.parse(signed["splice"])
    asked = signed["splice_request"]
    read = splice_ad.check_request(json.dumps(asked.as_dict()).encode(), signed["splice"].pubkey, asked.created_at)
    offer = Offer.from_document(VECTORS["offer"])
    assert read.room == offer.room
    assert offer.splice == f"splice:{signed['splice'].pubkey}@{ad.at[0]}"


def test_a_dialler_proves_itself_to_one_listener(signed):
    event = signed["wire_auth"]
    (listener,) = event.values("p")
    certificate = bytes.fromhex(VECTORS["wire_auth_certificate"])
    text = json.dumps(event.as_dict())
    assert identity.check_auth(text, listener, certificate, event.created_at) == event.pubkey


def test_a_recipe_and_a_swarm_have_these_digests():
    recipe, swarm = VECTORS["recipe"], VECTORS["swarm"]
    assert Recipe.from_document(recipe["document"]).digest() == recipe["digest"]
    read = Swarm.from_document(swarm["document"])
    assert (read.digest(), read.address) == (swarm["digest"], swarm["address"])
    assert RollCall.from_document(swarm["roll_call"]).swarm == read.digest()


@pytest.mark.parametrize("layers", [[-1, 11], [0, 2**53]])
def test_layers_of_a_swarms_node_are_counted_from_0(layers):
    document = VECTORS["swarm"]["document"]
    nodes = [{**document["nodes"][0], "layers": layers}]
    with pytest.raises(BadInput, match=r"nodes\.0\.layers"):
        Swarm.from_document({**document, "nodes": nodes})


@pytest.mark.parametrize("port", [0, 65_536])
def test_a_splice_is_at_a_port_that_there_is(signed, port):
    document = {**json.loads(signed["splice"].content), "at": [f"splice.example:{port}"]}
    with pytest.raises(BadEvent, match=r"at\.0"):
        splice_ad.Splice.from_document(document)


def test_a_round_goes_from_its_request_to_its_close(signed):
    ad, request, come = trainer_ad.parse(signed["trainer"]), rounds.parse(signed["round"]), signed["delivery"]
    ticket = RoundTicket.from_document(VECTORS["round_ticket"])
    assert request.kind in ad.kinds
    assert request.round.shards[0].ticket == ticket.seal()
    assert request.round.seal == rounds.seal_of(VECTORS["recipe"]["digest"], ticket.salt)
    delivered = DeliveryDetails.parse(_opened(come))
    assert delivered == DeliveryDetails.from_document(VECTORS["delivered"])
    read = delivery.parse(come)
    assert read.commitment == delivered.commitment(come.pubkey, request.id, 0, 0)
    closed = round_close.parse(signed["round_close"])
    assert closed.close.find_result(request.id, come.pubkey).commitment == read.commitment
    assert audit.parse(signed["snapshots_asked"]).close == closed.id
    assert outer_step.parse(signed["outer"]).round.inputs[0].result == come.id


def test_a_narrowed_tensor_has_these_bytes():
    sent = bytes.fromhex(VECTORS["mxint8"]["sent"])
    own = torch.tensor([[64.5, -3.0, 0.0, 0.25]])
    assert mxint8.narrowed(own).numpy().astype(np.uint8).tobytes() == sent
