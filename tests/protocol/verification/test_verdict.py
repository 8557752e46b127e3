"""A verdict is certified by 2f+1 votes for it and nothing else, and convicts nobody in doubt."""

import orjson
import pytest

from nodewire.errors import BadEvent, BadInput, BadQuorum, BadTag, BadVersion
from nodewire.nostr.event import sign
from nodewire.protocol.committee import quorum_certificate as certificates
from nodewire.protocol.verification import complaint, verdict
from nodewire.protocol.verification.verdict import Certificate, Verdict
from tests.protocol.committee.actors import committee, digest, keys

COMMITTEE, SEATS = committee()
PROVIDER, VERIFIER, LIAR = (keys(name).public for name in ("provider", "verifier", "liar"))


def said(**changes) -> Verdict:
    fields = {
        "committee": COMMITTEE.digest(),
        "epoch": 7,
        "request": digest("request"),
        "task": "stage.0",
        "chunk": 3,
        "attempt": 0,
        "provider": PROVIDER,
        "root": digest("root"),
        "outcome": "fail",
        "culprit": PROVIDER,
        "verifiers": ((VERIFIER, True), (LIAR, False)),
    }
    return Verdict(**{**fields, **changes})


def certified(found=None, voters=SEATS[:3]) -> Certificate:
    found = found or said()
    return Certificate(found, tuple(verdict.build_vote(s.keys, found, created_at=5) for s in voters))


def test_a_certificate_is_parsed_back_and_holds():
    event = verdict.build(keys("anyone"), certified(), created_at=6)
    assert verdict.parse(event) == certified_as_in(event)
    verdict.parse(event).check(COMMITTEE)


def certified_as_in(event):
    votes = orjson.loads(event.content)["votes"]
    return Certificate(said(), tuple(verdict.parse_unverified(vote) for vote in votes))


@pytest.mark.parametrize(
    "voters",
    [SEATS[:2], [SEATS[0]] * 3, [*SEATS[:2], committee(name="others")[1][0]], []],
    ids=["too few", "one thrice", "an outsider", "none"],
)
def test_without_a_quorum_it_does_not_hold(voters):
    with pytest.raises(BadQuorum):
        certified(voters=voters).check(COMMITTEE)


def test_votes_for_another_verdict_or_another_sample_do_not_count():
    for other in (said(root=digest("other")), said(chunk=4), said(attempt=1)):
        with pytest.raises(BadQuorum, match="something else"):
            Certificate(said(), certified(other).votes).check(COMMITTEE)
    with pytest.raises(BadQuorum, match="committee"):
        certified().check(committee(name="others")[0])


def test_two_votes_of_one_oracle_on_one_sample_are_a_fault():
    first = verdict.build_vote(SEATS[0].keys, said(), created_at=5)
    second = verdict.build_vote(SEATS[0].keys, said(outcome="pass", culprit=""), created_at=6)
    assert certificates.contradiction(first, second).oracle == SEATS[0].keys.public


def test_another_providers_root_for_the_same_chunk_is_another_sample():
    assert said().key != said(provider=LIAR, culprit=LIAR, verifiers=()).key


@pytest.mark.parametrize(
    "changes",
    [
        {"culprit": ""},
        {"culprit": LIAR},
        {"outcome": "pass", "culprit": PROVIDER},
        {"outcome": "pass", "culprit": VERIFIER},
        {"outcome": "withheld"},
        {"outcome": "unsure"},
        {"verifiers": ((VERIFIER, True), (VERIFIER, False))},
        {"verifiers": ((PROVIDER, True),)},
        {"accomplices": (VERIFIER,)},
        {"accomplices": (PROVIDER,)},
        {"verifiers": ((LIAR, False),), "accomplices": (LIAR, LIAR)},
        {"outcome": "pass", "culprit": "", "verifiers": ((LIAR, False),), "accomplices": (LIAR,)},
        {"outcome": "grey"},
        {"epoch": -1},
    ],
)
def test_a_verdict_that_contradicts_itself_is_none(changes):
    with pytest.raises(BadInput):
        Verdict.from_document({**said().document(), **changes})


def test_an_accomplice_is_convicted_with_the_provider():
    assert said(verifiers=((LIAR, False),), accomplices=(LIAR,)).convicted == (PROVIDER, LIAR)


def test_a_lying_verifier_is_convicted_by_a_pass():
    assert said(outcome="pass", culprit=LIAR).culprit == LIAR


EQUIVOCATED = {"outcome": "unsure", "culprit": LIAR, "verifiers": (), "equivocated": ("hidden.0", 2)}


def test_who_equivocated_is_convicted_and_the_work_that_came_of_it_is_unsure():
    assert said(**EQUIVOCATED).culprit == LIAR
    assert Verdict.unpack(said(**EQUIVOCATED).pack()) == Verdict.parse(said(**EQUIVOCATED).to_json())
    assert said(**EQUIVOCATED).digest() != said(**{**EQUIVOCATED, "equivocated": ("hidden.0", 1)}).digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"culprit": ""},
        {"culprit": PROVIDER},
        {"outcome": "fail", "culprit": PROVIDER},
        {"outcome": "pass"},
        {"outcome": "withheld"},
        {"equivocated": ("hidden.0", 4)},
        {"equivocated": ("../x", 1)},
        {"equivocated": ("hidden.0",)},
    ],
)
def test_an_equivocation_is_no_other_verdict(changes):
    with pytest.raises(BadInput):
        Verdict.from_document({**said().document(), **EQUIVOCATED, **changes})


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", BadEvent),
        ("[]", BadEvent),
        ('{"v":2}', BadVersion),
        ('{"v":1,"verdict":{},"votes":[],"more":1}', BadEvent),
        ('{"v":1,"verdict":{},"votes":[]}', BadInput),
        ('{"v":1,"verdict":{"v":1},"votes":7}', BadQuorum),
    ],
)
def test_garbage_is_a_typed_error(content, error):
    good = verdict.build(keys("anyone"), certified(), created_at=6)
    with pytest.raises(error):
        verdict.parse(sign(keys("anyone"), good.kind, created_at=6, tags=good.tags, content=content))


@pytest.mark.parametrize("name", ["c", "n", "x"])
def test_tags_that_name_another_verdict_are_refused(name):
    good = verdict.build(keys("anyone"), certified(), created_at=6)
    tags = [(t[0], digest("other")) if t[0] == name else t for t in good.tags]
    with pytest.raises(BadTag):
        verdict.parse(sign(keys("anyone"), good.kind, created_at=6, tags=tags, content=good.content))


def test_an_epochs_certificate_is_no_verdict_and_a_verdict_no_epochs():
    event = verdict.build(keys("anyone"), certified(), created_at=6)
    with pytest.raises(BadInput):
        certificates.parse(event)


IN_DOUBT = {"outcome": "unsure", "culprit": LIAR, "verifiers": ()}
WITHHELD = {"outcome": "withheld", "culprit": "", "verifiers": ()}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"verifiers": ((VERIFIER, True), (VERIFIER, False))}, "one stands twice"),
        ({"culprit": VERIFIER}, "by nobody else"),
        ({"outcome": "pass", "culprit": VERIFIER}, "no verifier that disagreed"),
        ({"accomplices": (VERIFIER,)}, "no verifier that disagreed with a fail"),
        ({"accomplices": (LIAR, LIAR)}, "accomplices: one stands twice"),
        ({"outcome": "unsure"}, "nobody is convicted in doubt"),
        ({**IN_DOUBT, "equivocated": ("stage.0", 1), "culprit": ""}, "convicts the producer"),
        ({**IN_DOUBT, "equivocated": ("stage.0", 1), "verifiers": ((VERIFIER, True),)}, "input is not known"),
        ({**IN_DOUBT, "equivocated": ("stage.0", 4)}, "a later chunk"),
        ({**WITHHELD, "claimed": digest("claim")}, "a claim without an amount"),
        ({**WITHHELD, "claimed_msat": 5}, "an amount without a claim"),
        ({"price_msat": 5}, "only what passed counts"),
        (
            {**WITHHELD, "claimed": digest("claim"), "claimed_msat": 5, "verifiers": ((VERIFIER, True),)},
            "nobody verified",
        ),
    ],
)
def test_a_verdict_that_contradicts_itself_is_refused(changes, reason):
    with pytest.raises(ValueError, match=reason):
        said(**changes)


def test_a_verdict_on_a_claim_has_the_claims_key_and_one_on_work_the_samples():
    on_a_claim = said(**WITHHELD, claimed=digest("claim"), claimed_msat=5)
    assert on_a_claim.key == complaint.case_key(PROVIDER, digest("request"), digest("claim"))
    assert on_a_claim.key != said(**WITHHELD).key == said().key
