"""What a producer signs of the frames that it sent, and what follows from it for who is judged on them."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadFrame, BadInput, BadSignature, BadVersion, TooLarge
from nodewire.nostr.keys import Keys
from nodewire.protocol.encoding import canonical
from nodewire.protocol.job.chunk import leaf_of
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification import statement
from nodewire.protocol.verification.statement import FrameStatement, HashedFrame, digest_of, hashed, settle, tensors_of
from tests.protocol import documents

REQUEST = "cd" * 32
PRODUCER, OTHER = documents.PROVIDERS[:2]


def frame(seq, value=1.0, **meta):
    data = bytes([seq % 250, int(value)]) * 16
    return Frame("hidden.0", seq, (Array("float32", (1, 1, 8), data),), {"pos": seq, **meta})


FRAMES = [hashed(frame(seq)) for seq in (1, 2, 3)]


def said(frames=FRAMES, keys=PRODUCER, **changes) -> FrameStatement:
    fields = {"request": REQUEST, "task": "driver", "edge": "hidden.0", "chunk": 1, "attempt": 0}
    return FrameStatement.sign(keys, **{**fields, "frames": digest_of(frames), **changes})


def test_a_statement_is_its_signers_over_every_field():
    one = said()
    one.check()
    others = {
        "request": "ee" * 32,
        "task": "stage.0",
        "edge": "hidden.1",
        "chunk": 2,
        "attempt": 1,
        "frames": "ab" * 32,
        "signer": OTHER.public,
    }
    for name, value in others.items():
        with pytest.raises(BadSignature):
            one.model_copy(update={name: value}).check()


def test_frames_are_told_apart_by_number_type_shape_bytes_and_meta():
    array = Array("float32", (2, 4), bytes(32))
    base = Frame("e", 0, (array,), {"pos": 0})
    others = [
        base,
        dataclasses.replace(base, seq=1),
        dataclasses.replace(base, meta={"pos": 1}),
        dataclasses.replace(base, meta={}),
        dataclasses.replace(base, tensors=()),
        dataclasses.replace(base, tensors=(array, array)),
        dataclasses.replace(base, tensors=(Array("int32", (2, 4), bytes(32)),)),
        dataclasses.replace(base, tensors=(Array("float32", (4, 2), bytes(32)),)),
        dataclasses.replace(base, tensors=(Array("float32", (2, 4), bytes(31) + b"\x01"),)),
    ]
    digests = [digest_of([hashed(one)]) for one in others]
    assert len(set(digests)) == len(digests)
    assert digest_of([]) not in digests


@settings(max_examples=30)
@given(order=st.permutations(range(6)))
def test_the_order_in_which_frames_are_taken_means_nothing(order):
    assert digest_of([hashed(frame(seq)) for seq in order]) == digest_of([hashed(frame(seq)) for seq in range(6)])


def test_a_hashed_frame_has_the_tensors_that_a_leaf_has():
    assert hashed(frame(3)).tensors == tensors_of(leaf_of(documents.manifest().digest(), frame(3)))


def test_statements_travel_in_control_documents_of_a_bounded_size():
    many = [said(chunk=n) for n in range(statement.MAX_OF_A_DOCUMENT + 3)]
    told = statement.controls(many)
    assert [len(document["sent"]) for document in told] == [statement.MAX_OF_A_DOCUMENT, 3]
    assert all(len(canonical.encode(document)) < 48 * 2**10 for document in told)
    came = [canonical.decode(canonical.encode(document), max_bytes=2**16) for document in told]
    assert [one for document in came for one in statement.from_control(document)] == many
    assert statement.from_control({"t": "close"}) is None


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({}, BadFrame),
        ({"sent": {}}, BadFrame),
        ({"sent": ["x"]}, BadFrame),
        ({"sent": [{}] * 65}, BadFrame),
        ({"sent": [{**said().document(), "v": 2}]}, BadVersion),
        ({"sent": [{**said().document(), "chunk": -1}]}, BadFrame),
        ({"sent": [{**said().document(), "edge": "../x"}]}, BadFrame),
        ({"sent": [{**said().document(), "more": 1}]}, BadFrame),
    ],
)
def test_what_is_no_statement_is_refused(document, error):
    with pytest.raises(error):
        statement.from_control({"t": "sent", **document})


def test_statements_are_packed_for_who_judges(monkeypatch):
    assert statement.unpack(statement.pack([said(), said(chunk=2)])) == (said(), said(chunk=2))
    for data in (b"\xff", canonical.encode({}), canonical.encode([1])):
        with pytest.raises(BadInput):
            statement.unpack(data)
    monkeypatch.setattr(statement, "MAX_PACKED_BYTES", 100)
    with pytest.raises(TooLarge):
        statement.pack([said()])
    with pytest.raises(TooLarge):
        statement.unpack(canonical.encode([said().document()]))


# ---- what a consumer is judged on ---------------------------------------------------------------------------------

COMMITTED = {one.seq: one.tensors for one in FRAMES}
OTHERS = [hashed(frame(seq, 9)) for seq in (1, 2, 3)]
LATER = [HashedFrame(one.seq, one.tensors, {"pos": one.seq + 1}) for one in FRAMES]


@pytest.mark.parametrize(
    ("word", "shown", "committed", "found"),
    [
        (said(), FRAMES, COMMITTED, "received"),
        (said(), FRAMES, None, "received"),
        (said(OTHERS), OTHERS, COMMITTED, "equivocated"),
        (said(FRAMES[:2]), FRAMES[:2], COMMITTED, "equivocated"),
        (said(OTHERS), FRAMES, COMMITTED, "committed"),  # what it signed is not what the consumer shows
        (said(OTHERS), [], COMMITTED, "committed"),
        (said(OTHERS), FRAMES, None, "unknown"),
        (None, FRAMES, COMMITTED, "committed"),
        (None, FRAMES, None, "unknown"),
        (said(LATER), LATER, COMMITTED, "received"),  # the meta is signed, and no part of a commitment
        (said(LATER), FRAMES, None, "unknown"),
    ],
)
def test_what_a_consumer_is_judged_on(word, shown, committed, found):
    assert settle(word, shown, committed) == found


def test_a_strangers_statement_is_signed_by_the_stranger():
    forged = said(keys=Keys(b"\x0b" * 32)).model_copy(update={"signer": PRODUCER.public})
    with pytest.raises(BadSignature):
        forged.check()
