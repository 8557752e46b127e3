"""A committee, a job and verdicts about it, for the tests of bonds: all follows from names, nothing from chance."""

from __future__ import annotations

from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Key
from nodewire.protocol import kinds
from nodewire.protocol.committee import dvrf, oracle_round
from nodewire.protocol.committee.committee import Committee, Oracle
from nodewire.protocol.encoding.canonical import tagged_hash
from nodewire.protocol.job import request as job
from nodewire.protocol.job.plan import Assignment, Verification
from nodewire.protocol.job.share_statement import ShareStatement
from nodewire.protocol.verification import verdict
from nodewire.protocol.verification.verdict import Certificate, Verdict
from tests.protocol import documents

GENESIS_S = 1_700_000_000
EPOCH = 10
PRICE_MSAT = 1_000
RATE_PPM = 250_000
SHARE_PPM = 500_000
FEE_PPM = 100_000
RELAYS = ("ws://127.0.0.1:1",)


def keys(name: str) -> Keys:
    return Keys(tagged_hash("test/key", name.encode()))


HOLDER, CUSTOMER, STRANGER = keys("holder"), keys("customer"), keys("stranger")
PROVIDER, OTHER = keys("provider"), keys("other provider")
VERIFIERS = [keys(f"verifier/{n}") for n in range(3)]
HASH = "ab" * 32


def committee(name: str = "main", f: int = 1, **changes) -> tuple[Committee, list[Keys]]:
    """A committee that lists HOLDER, and its oracles' keys in share order."""
    n = 3 * f + 1
    dealt = dvrf.deal(n, 2 * f + 1, lambda size: tagged_hash("test/stream", name.encode())[:size].ljust(size, b"\x01"))
    seats = [keys(f"{name}/oracle/{i}") for i in range(1, n + 1)]
    oracles = tuple(
        Oracle(pubkey=seat.public, share_index=i, share_public=dealt.publics[i].hex())
        for i, seat in enumerate(seats, start=1)
    )
    fields = {
        "name": name,
        "oracles": oracles,
        "f": f,
        "genesis_s": GENESIS_S,
        "epoch_ms": 2_000,
        "skew_ms": 200,
        "beat_ms": 1_000,
        "fee_ppm": FEE_PPM,
        "vrf_public": dealt.group.hex(),
        "bond_holders": (HOLDER.public,),
        "verify_rate_ppm": RATE_PPM,
        "verify_share_ppm": SHARE_PPM,
    }
    return Committee(**{**fields, **changes}), seats


COMMITTEE, ORACLES = committee()
SHARE_MSAT = 2 * PRICE_MSAT * SHARE_PPM // 1_000_000


def request(
    customer: Keys = CUSTOMER,
    price_msat: int = PRICE_MSAT,
    committee: Committee = COMMITTEE,
    salt: str = "",
    driver: Keys = PROVIDER,
    stage: Keys = OTHER,
):
    """A job of two tasks, the driver's and a stage."""
    tasks = tuple(
        Assignment(task=task, provider=provider.public, price_msat=price_msat)
        for task, provider in (("driver", driver), ("stage.0", stage))
    )
    plan = documents.plan(
        customer=customer.public,
        committee=committee.digest(),
        tasks=tasks,
        chunk_msat=2 * price_msat,
        verification=Verification(policy="sampled", rate_ppm=RATE_PPM, share_ppm=SHARE_PPM),
    )
    tags, content = job.tags_and_content(
        plan,
        manifest_address=f"38840:{'cd' * 32}:tiny",
        certificate_event=HASH,
        partials=(),
        relays=RELAYS,
        ticket=HASH,
    )
    return events.sign(customer, kinds.INFERENCE, created_at=5, tags=[*tags, ["salt", salt]], content=content)


REQUEST = request()


def verdict_of(request=REQUEST, *, committee: Committee = COMMITTEE, agreed=(0, 1), **changes) -> Verdict:
    fields = {
        "committee": committee.digest(),
        "epoch": EPOCH,
        "request": request.id,
        "task": "driver",
        "chunk": 0,
        "attempt": 0,
        "provider": PROVIDER.public,
        "root": HASH,
        "outcome": "pass",
        "culprit": "",
        "verifiers": tuple((v.public, n in agreed) for n, v in enumerate(VERIFIERS)),
    }
    return Verdict(**{**fields, **changes})


def failed(request=REQUEST, *, culprit: Keys = PROVIDER, **changes) -> Verdict:
    return verdict_of(request, outcome="fail", culprit=culprit.public, provider=culprit.public, **changes)


def certificate(said: Verdict, voters=tuple(ORACLES[:3]), *, digest: str | None = None):
    """The event by which `voters` certify what was said (or, with `digest`, something else)."""
    topic = verdict.topic(said.key)
    votes = tuple(
        oracle_round.build_vote(voter, said.committee, topic, digest or said.digest(), created_at=7) for voter in voters
    )
    return verdict.build(STRANGER, Certificate(said, votes), created_at=8)


def statement(chunk: int, *shares: int, request=REQUEST, sender: Keys = CUSTOMER, holder: Keys = HOLDER):
    """The customer's statement of the shares of this chunk and of those after it."""
    said = {"request": request.id, "holder": holder.public, "chunk": chunk, "shares": shares or (SHARE_MSAT,)}
    return ShareStatement.sign(sender, **said)


def zap(chunk: int, amount_msat: int = SHARE_MSAT, request=REQUEST, sender: Keys = CUSTOMER):
    """The zap request for a lump that begins with one chunk's share."""
    key = Key(request.id, HOLDER.public, chunk, 0)
    return zaps.build_request(sender, key, amount_msat, relays=RELAYS, lnurl=None, created_at=9)
