"""Requests, feedback, results, receipts and closes: built, signed, parsed back; altered ones refused by name."""

import orjson
import pytest

from nodewire.errors import BadEvent, BadHash, BadSignature, BadTag, BadVersion, NodewireError
from nodewire.nostr import event as events
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback, receipt
from nodewire.protocol.job import request as job
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.plan import Terms
from nodewire.protocol.job.receipt import PaidChunk, Receipt
from nodewire.protocol.model import manifest_event
from tests.protocol import documents

ME, PROVIDER = documents.CUSTOMER, documents.PROVIDERS[0]
ADDRESS = f"38840:{'cd' * 32}:tiny"
HASH = documents.HASH


def request(keys=ME, drop=(), replace=(), **plan_changes):
    tags, content = job.tags_and_content(
        documents.plan(**plan_changes),
        manifest_address=ADDRESS,
        certificate_event=HASH,
        partials=(),
        relays=("ws://r",),
        ticket=HASH,
    )
    replaced = dict(replace)
    tags = [replaced.get(t[0], t) for t in tags if t[0] not in drop]
    return events.sign(keys, kinds.INFERENCE, created_at=5, tags=tags, content=content)


def test_a_request_is_parsed_back():
    parsed = job.parse(request())
    assert parsed.plan == documents.plan()
    assert (parsed.customer, parsed.manifest_address, parsed.bid_msat) == (ME.public, ADDRESS, 100_000)
    assert parsed.relays == ("ws://r",)


def test_another_customers_plan_is_refused():
    with pytest.raises(BadEvent, match="customer"):
        job.parse(request(keys=PROVIDER))


@pytest.mark.parametrize("tag", ["a", "x", "snapshot", "committee", "bid", "e", "p"])
def test_a_request_without_one_of_its_tags_is_refused_by_name(tag):
    with pytest.raises(BadTag, match=tag):
        job.parse(request(drop=(tag,)))


@pytest.mark.parametrize(("tag", "value"), [("x", "00" * 32), ("bid", "7"), ("a", "nonsense"), ("snapshot", "11" * 32)])
def test_a_tag_that_contradicts_the_plan_is_refused_by_name(tag, value):
    with pytest.raises(BadTag, match=tag):
        job.parse(request(replace={tag: [tag, value]}))


@pytest.mark.parametrize("v", ["2", "1.0", "true"])
def test_a_request_of_another_version_is_refused_as_such(v):
    good = request()
    content = good.content.replace('{"v":1,"plan"', f'{{"v":{v},"plan"')
    with pytest.raises(BadVersion):
        job.parse(events.sign(ME, kinds.INFERENCE, created_at=5, tags=good.tags, content=content))


EMPTY = '"plan":{},"partials":[]}'


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"v":2,' + EMPTY, '{"v":1,' + EMPTY])
def test_garbage_in_the_content_is_a_typed_error(content):
    good = request()
    with pytest.raises(NodewireError):
        job.parse(events.sign(ME, kinds.INFERENCE, created_at=5, tags=good.tags, content=content))


@pytest.mark.parametrize("most", [7, 2_100_000_000_000_000_000])
def test_terms_bound_what_a_plan_says(most):
    terms = Terms(max_chunk_msat=1, max_total_msat=most)
    assert job.parse(request(terms=terms)).bid_msat == most


def test_feedback_with_a_due_is_parsed_back():
    due = feedback.Due(chunk=3, attempt=0, units=2, amount_msat=2000, root=HASH)
    event = feedback.build(PROVIDER, HASH, ME.public, "payment-required", created_at=5, due=due)
    said = feedback.parse(event)
    assert (said.provider, said.request, said.customer, said.due) == (PROVIDER.public, HASH, ME.public, due)


def test_feedback_says_what_of_the_prompt_was_found():
    due = feedback.Due(chunk=0, attempt=0, units=5, amount_msat=2000, root=HASH, cached=3)
    event = feedback.build(PROVIDER, HASH, ME.public, "payment-required", created_at=5, due=due)
    assert feedback.parse(event).due == due
    assert "cached" not in {tag[0] for tag in build_due(0, 5, 0).tags}


@pytest.mark.parametrize(
    ("chunk", "units", "cached"), [(0, 5, "6"), (1, 1, "1"), (0, 5, "-1"), (0, 5, "1e9"), (0, 5, "x")]
)
def test_more_than_the_prompt_is_not_found_nor_a_number_that_is_none(chunk, units, cached):
    tags = [*build_due(chunk, units, 0).tags, ["cached", cached]]
    with pytest.raises(BadTag):
        feedback.parse(events.sign(PROVIDER, kinds.FEEDBACK, created_at=5, tags=tags))


def build_due(chunk, units, cached):
    due = feedback.Due(chunk=chunk, attempt=0, units=units, amount_msat=2000, root=HASH, cached=cached)
    return feedback.build(PROVIDER, HASH, ME.public, "payment-required", created_at=5, due=due)


@pytest.mark.parametrize(("end", "positions"), [(False, None), (True, None), (True, 7)])
def test_claim_shows_the_close_that_it_rests_on(end, positions):
    close = Close.sign(PROVIDER, request=HASH, attempt=0, chunk=3, units=1, end=end, positions=positions)
    due = feedback.Due(chunk=3, attempt=0, units=1, amount_msat=2000, root=HASH, close=close)
    event = feedback.build(PROVIDER, HASH, ME.public, "payment-required", created_at=5, due=due)
    assert feedback.parse(event).due == due
    feedback.parse(event).due.close.check(PROVIDER.public)


@pytest.mark.parametrize(
    "said",
    [[], ["ab" * 64], ["ab" * 64, "2", "0"], ["ab" * 64, "1", "-1"], ["ab" * 63, "1", "0"], ["z" * 128, "0", "0"]],
)
def test_malformed_close_in_a_claim_is_refused(said):
    tags = [*build_due(3, 1, 0).tags, ["close", *said]]
    with pytest.raises(BadTag):
        feedback.parse(events.sign(PROVIDER, kinds.FEEDBACK, created_at=5, tags=tags))


@pytest.mark.parametrize("status", ["processing", "partial", "success", "error", "busy"])
def test_other_feedback_asks_for_nothing(status):
    said = feedback.parse(
        feedback.build(PROVIDER, HASH, ME.public, status, created_at=5, remarks=feedback.Remarks(text="x"))
    )
    assert (said.status, said.text, said.due) == (status, "x", None)


@pytest.mark.parametrize(
    "tags",
    [
        [["e", HASH], ["p", HASH]],
        [["e", HASH], ["p", HASH], ["status", "maybe"]],
        [["e", "x"], ["p", HASH], ["status", "busy"]],
        [["e", HASH], ["p", HASH], ["status", "payment-required"]],
        [["e", HASH], ["p", HASH], ["status", "payment-required"], ["amount", "-5"], ["chunk", "0", "0", "1", HASH]],
        [["e", HASH], ["p", HASH], ["status", "payment-required"], ["amount", "5"], ["chunk", "0", "0", "1"]],
        [["e", HASH], ["p", HASH], ["status", "payment-required"], ["amount", "5"], ["chunk", "٣", "0", "1", HASH]],
    ],
)
def test_malformed_feedback_is_refused(tags):
    with pytest.raises(BadTag):
        feedback.parse(events.sign(PROVIDER, kinds.FEEDBACK, created_at=5, tags=tags))


def a_receipt():
    chunk = PaidChunk(
        chunk=0,
        attempt=0,
        units=1,
        root=HASH,
        feedback=HASH,
        amount_msat=5,
        fee_msat=1,
        payment_hash=HASH,
        zap_receipt=None,
    )
    return Receipt(request=HASH, plan=HASH, provider=PROVIDER.public, chunks=(chunk,))


def test_a_receipt_is_parsed_back():
    assert receipt.parse(receipt.build(ME, a_receipt(), created_at=5)) == a_receipt()


def test_a_receipt_whose_tags_say_something_else_is_refused():
    good = receipt.build(ME, a_receipt(), created_at=5)
    tags = [["e", "00" * 32], *good.tags[1:]]
    with pytest.raises(BadTag, match="e"):
        receipt.parse(events.sign(ME, kinds.RECEIPT, created_at=5, tags=tags, content=good.content))


def test_a_close_is_believed_only_from_the_driver():
    close = Close.sign(PROVIDER, request=HASH, attempt=0, chunk=2, units=1, end=True)
    close.check(PROVIDER.public)
    with pytest.raises(BadSignature):
        close.check(ME.public)
    with pytest.raises(BadSignature):
        close.model_copy(update={"units": 2}).check(PROVIDER.public)


def test_a_manifest_event_is_parsed_back_from_content_and_from_its_blob():
    manifest = documents.manifest()
    event = manifest_event.build(PROVIDER, manifest, created_at=5, blob_sha256=HASH, servers=("http://b",))
    assert manifest_event.parse(event) == manifest
    assert manifest_event.address(event) == f"38840:{PROVIDER.public}:tiny"
    bare = events.sign(PROVIDER, kinds.MANIFEST, created_at=5, tags=event.tags)
    assert manifest_event.parse(bare, manifest.pack()) == manifest
    with pytest.raises(BadEvent):
        manifest_event.parse(bare)


def test_a_manifest_that_is_not_the_cited_one_is_refused():
    event = manifest_event.build(PROVIDER, documents.manifest(), created_at=5, blob_sha256=HASH, servers=())
    other = orjson.dumps({**documents.manifest().document(), "context": 1}).decode()
    with pytest.raises(BadHash):
        manifest_event.parse(events.sign(PROVIDER, kinds.MANIFEST, created_at=5, tags=event.tags, content=other))
