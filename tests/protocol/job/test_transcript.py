"""A generation's transcript: its chunks in order, its chain, and its customer's signature."""

from __future__ import annotations

import pytest

from nodewire.errors import BadFrame, BadInput, BadSignature
from nodewire.protocol.job.transcript import GenerationTranscript, Part, TaskRoot, asked
from tests.protocol.documents import CUSTOMER, HASH, PROVIDERS, manifest


def part(first: int, *roots: TaskRoot, request: str = "{}") -> Part:
    return Part(
        request=request,
        ticket="{}",
        first=first,
        ads=(),
        rtts_us=(("hidden.1", 900),),
        roots=roots,
        receipts=(),
        paid_msat=3_000,
        fees_msat=3,
        share_msat=0,
    )


def root(chunk: int, value: str = HASH) -> TaskRoot:
    return TaskRoot(provider=PROVIDERS[0].public, task="driver", chunk=chunk, attempt=0, root=value)


def transcript(**changes) -> GenerationTranscript:
    fields = {
        "customer": CUSTOMER.public,
        "model": "38840:" + CUSTOMER.public + ":tiny",
        "manifest": manifest().to_json(),
        "size": 4,
        "prompt": "the cat",
        "ids": tuple(range(10)),
        "jobs": (part(0, root(0), root(1)),),
        "chain": HASH,
    }
    return GenerationTranscript(**{**fields, **changes})


def chain(made: GenerationTranscript) -> list[str]:
    return list(made.links())


def test_a_jobs_first_chunk_is_the_token_of_its_prompt():
    assert list(transcript().chunks()) == [(0, 0, (0,)), (0, 1, (1, 2, 3, 4)), (0, 2, (5, 6, 7, 8)), (0, 3, (9,))]


def test_tokens_that_a_later_job_made_again_are_its_own():
    made = transcript(jobs=(part(0), part(7), part(3)))
    assert list(made.chunks()) == [
        (0, 0, (0,)),
        (0, 1, (1, 2)),
        (2, 0, (3,)),
        (2, 1, (4, 5, 6, 7)),
        (2, 2, (8, 9)),
    ]


@pytest.mark.parametrize(
    ("jobs", "reason"),
    [((part(1),), "made no first token"), ((part(0), part(11)), "begins behind the last token")],
)
def test_jobs_begin_at_the_beginning_and_within_the_text(jobs, reason):
    with pytest.raises(ValueError, match=reason):
        transcript(jobs=jobs)
    with pytest.raises(BadInput, match=reason):
        GenerationTranscript.from_document({**transcript().document(), "jobs": [one.document() for one in jobs]})


def test_a_link_stands_for_all_before_it():
    links = chain(transcript())
    assert len(links) == len(set(links)) == 5
    other = chain(transcript(ids=(*range(5), 55, *range(6, 10))))
    assert [a == b for a, b in zip(links, other, strict=True)] == [True, True, True, False, False]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "the dog"},
        {"customer": PROVIDERS[1].public},
        {"jobs": (part(0, root(0), root(1), request="{ }"),)},
        {"jobs": (part(0, root(0), root(1, "cd" * 32)),)},
        {"jobs": (part(0, root(0)),)},
    ],
)
def test_no_other_prompt_customer_request_or_root_has_the_same_chain(changes):
    assert chain(transcript(**changes))[-1] != chain(transcript())[-1]


def test_the_order_in_which_roots_came_changes_no_link():
    assert chain(transcript(jobs=(part(0, root(1), root(0)),))) == chain(transcript())


def test_its_customer_signs_it():
    signed = transcript().signed(CUSTOMER)
    signed.check_signature()
    for forged in (transcript(), transcript().signed(PROVIDERS[0]), signed.model_copy(update={"prompt": "the dog"})):
        with pytest.raises(BadSignature, match="not its customer's"):
            forged.check_signature()


def test_a_job_is_asked_with_the_tokens_of_those_before_it():
    first = asked("prompt", "the cat", ())
    assert [bytes(one.data) for one in first.tensors] == [b"the cat"]
    later = asked("prompt", "the cat", (7, 1))
    assert later.tensors[1].shape == (2,)
    assert bytes(later.tensors[1].data) == (7).to_bytes(8, "little") + (1).to_bytes(8, "little")
    with pytest.raises(BadFrame, match="beyond int64"):
        asked("prompt", "the cat", (2**63,))
