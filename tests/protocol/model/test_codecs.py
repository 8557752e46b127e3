"""Narrowed edges: a customer's wish that stands in the plan; nothing of it in documents that have none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadFrame, BadPlan, TooLarge
from nodewire.protocol.job.chunk import Opening, leaf_of
from nodewire.protocol.job.plan import Plan, Terms
from nodewire.protocol.job.receipt import Receipt
from nodewire.protocol.model.edge_codec import OWN, can_narrow, codings, sent_as
from nodewire.protocol.tensors.frame import MXINT8, Array, Frame, bytes_of
from nodewire.protocol.verification.comparison import FEW, NARROWED, TOLERANCES, alike, compare
from tests.protocol import documents

MANIFEST = documents.manifest()
DIGEST = MANIFEST.digest()


def changed(**edges: dict):
    """The manifest, with fields of some edges changed."""
    listed = tuple(edge.model_copy(update=edges.get(edge.name.replace(".", "_"), {})) for edge in MANIFEST.edges)
    return MANIFEST.model_copy(update={"edges": listed})


def terms(**codecs: str) -> Terms:
    named = {name.replace("_", "."): codec for name, codec in codecs.items()}
    return Terms(max_chunk_msat=10_000, max_total_msat=100_000, codecs=named)


# What stands in documents


def test_documents_without_a_wish_are_what_they_were():
    assert "codecs" not in terms().document()
    assert all("exact" not in edge for edge in MANIFEST.document()["edges"])
    receipt = Receipt(request=documents.HASH, plan=documents.HASH, provider=documents.HASH, chunks=())
    assert "codecs" not in receipt.document()
    for document in (documents.plan(), MANIFEST, receipt):
        assert type(document).unpack(document.pack()) == type(document).parse(document.to_json()) == document


def test_a_wish_is_part_of_what_a_plan_is_cited_by():
    plain, narrowed = documents.plan(), documents.plan(terms=terms(hidden_1="int8"))
    assert narrowed.document()["terms"]["codecs"] == {"hidden.1": "int8"}
    assert narrowed.digest() != plain.digest()
    assert Plan.unpack(narrowed.pack()) == narrowed
    assert narrowed.terms.lossy == ("int8",)
    assert terms(hidden_0="int8", hidden_1="bf16", return_="int8").lossy == ("bf16", "int8")


@pytest.mark.parametrize("codecs", [{"hidden.0": "int4"}, {"hidden.0": None}, {"Hidden 0": "int8"}, ["hidden.0"]])
def test_a_codec_that_nobody_knows_is_refused_as_the_plan_is_read(codecs):
    document = documents.plan().document()
    document["terms"]["codecs"] = codecs
    with pytest.raises(BadPlan, match=r"^terms\.codecs"):
        Plan.from_document(document)


# Which edges may be narrowed


def test_without_a_wish_no_edge_is_narrowed():
    assert codings(MANIFEST, {}) == OWN == {}


def test_floats_are_narrowed_and_all_else_passes_as_it_is():
    hidden = MANIFEST.edges[1].tensors[0]
    tensors = tuple(
        hidden.model_copy(update={"dtype": d}) for d in ("float32", "int64", "bfloat16", "float16", "bool", "uint8")
    )
    manifest = changed(hidden_0={"tensors": tensors})
    sent = {codec: [to for _, to in codings(manifest, {"hidden.0": codec})["hidden.0"]] for codec in ("bf16", "int8")}
    assert sent["bf16"] == ["bfloat16", "int64", "bfloat16", "float16", "bool", "uint8"]
    assert sent["int8"] == [MXINT8, "int64", MXINT8, MXINT8, "bool", "uint8"]


@pytest.mark.parametrize("edge", ["prompt", "tokens", "nowhere", "hidden.1", "return"])
def test_edges_that_cannot_be_narrowed_are_refused_by_name(edge):
    """The customer's, one that does not exist, one that the author calls exact, one without floats."""
    ids = tuple(t.model_copy(update={"dtype": "int64"}) for t in MANIFEST.edges[1].tensors)
    manifest = changed(hidden_1={"exact": True}, return_={"tensors": ids}, **{"return": {"tensors": ids}})
    with pytest.raises(BadPlan, match=edge):
        codings(manifest, {"hidden.0": "int8", edge: "int8"})


def test_terms_that_nobody_has_read_are_held_to_the_same():
    """A customer's own, made by hand."""
    with pytest.raises(BadPlan, match=r"hidden\.0 cannot be narrowed to int4"):
        codings(MANIFEST, {"hidden.0": "int4"})


def test_what_is_narrow_already_is_not_narrowed_to_the_same():
    narrow = tuple(t.model_copy(update={"dtype": "bfloat16"}) for t in MANIFEST.edges[1].tensors)
    manifest = changed(hidden_0={"tensors": narrow})
    assert not can_narrow(manifest.edges[1], "bf16")
    assert can_narrow(manifest.edges[1], "int8")


# Bytes


@given(st.lists(st.integers(0, 100), max_size=4))
def test_int8_takes_a_byte_for_every_number_and_every_32_of_a_row(shape):
    rows, width = int(np.prod(shape[:-1])), (shape or [1])[-1]
    assert bytes_of(MXINT8, shape) == rows * (width + (width + 31) // 32)


def test_an_array_of_another_length_than_its_shape_has_is_refused():
    Array(MXINT8, (2, 33), bytes(70)).check(70)
    with pytest.raises(BadFrame, match="shape"):
        Array(MXINT8, (2, 33), bytes(66)).check(100)
    with pytest.raises(TooLarge):
        Array(MXINT8, (2**30, 2**30), b"").check(2**20)


# Comparison


def leaf(dtype: str, data: bytes, seq: int = 1):
    return leaf_of(DIGEST, Frame("hidden.1", seq, (Array(dtype, (1, 1, 8), data),), {}))


def opened(*leaves) -> Opening:
    return Opening(
        author=documents.HASH, request=documents.HASH, task="stage.0", chunk=1, attempt=0, secret=bytes(32),
        leaves=leaves,
    )  # fmt: skip


def bf16(values) -> bytes:
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


def int8(codes, scale: int = 127) -> bytes:
    return bytes([scale]) + np.asarray(codes, np.int8).tobytes()


HIDDEN = np.array([64.0, 10, -3, 0, 20, -20, 5, 1], np.float32)


def test_one_number_that_was_rounded_the_other_way_is_the_same_work_and_what_moves_more_is_not():
    one = leaf(MXINT8, int8(HIDDEN))
    for step, outcome in ((1, "pass"), (4, "fail")):
        moved = HIDDEN.copy()
        moved[0] += step
        other = leaf(MXINT8, int8(moved))
        assert compare(MANIFEST, "stage.0", opened(one), opened(other)).outcome == outcome
        assert alike(MANIFEST, one, other) is (outcome == "pass")
    near, far = (leaf("bfloat16", bf16(HIDDEN * (1 + by))) for by in (2.0**-7, 2.0**-5))
    assert compare(MANIFEST, "stage.0", opened(leaf("bfloat16", bf16(HIDDEN))), opened(near)).outcome == "pass"
    assert compare(MANIFEST, "stage.0", opened(leaf("bfloat16", bf16(HIDDEN))), opened(far)).outcome == "fail"


def test_what_no_single_frame_shows_their_mean_does():
    """One number that was rounded the other way is nobody's fault; one in every frame is another arithmetic's."""
    moved = HIDDEN.copy()
    moved[0] += 1  # a 64th of the row's largest
    right, wrong = int8(HIDDEN), int8(moved)

    def judged(*sent):
        mine = opened(*(leaf(MXINT8, right, seq) for seq in range(1, len(sent) + 1)))
        theirs = opened(*(leaf(MXINT8, data, seq) for seq, data in enumerate(sent, start=1)))
        return compare(MANIFEST, "stage.0", mine, theirs)

    assert judged(*[right] * 7, wrong).outcome == "pass"
    assert judged(*[wrong] * (FEW - 1)).outcome == "pass"
    assert judged(*[wrong] * FEW).outcome == "fail"
    assert judged(*[right, wrong, right, right] * 4).outcome == "grey"


def test_the_tolerance_is_that_of_the_edges_own_dtype_and_of_what_travels():
    """A task that computes in float32 is held to more on an edge in bf16 than one that computes in bfloat16."""
    mine, theirs = leaf("bfloat16", bf16(HIDDEN)), leaf("bfloat16", bf16(HIDDEN * (1 + 5 * 2.0**-8)))
    narrow = tuple(t.model_copy(update={"dtype": "bfloat16"}) for t in MANIFEST.edges[2].tensors)
    own = changed(hidden_1={"tensors": narrow})
    assert compare(own, "stage.0", opened(mine), opened(theirs)).outcome == "pass"
    assert compare(MANIFEST, "stage.0", opened(mine), opened(theirs)).outcome != "pass"


def test_what_was_not_narrowed_as_the_plan_says_is_other_work():
    one, other = leaf(MXINT8, int8(HIDDEN)), leaf("float32", HIDDEN.tobytes())
    assert compare(MANIFEST, "stage.0", opened(one), opened(other)).outcome == "fail"


def test_every_pair_of_dtypes_that_a_codec_makes_has_a_tolerance():
    made = {(own, sent_as(own, codec)) for own in TOLERANCES for codec in ("bf16", "int8")}
    assert {pair for pair in made if pair[0] != pair[1]} == set(NARROWED)
    for (own, _), tolerance in NARROWED.items():
        assert tolerance.fail_ppm > tolerance.pass_ppm > TOLERANCES[own].pass_ppm
