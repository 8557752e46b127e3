"""A job's public record in memory, built event by event: what relays and stores would have of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from nodewire.market import Contents
from nodewire.nostr import event as events
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip61
from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.accounts import debts
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.ecash.proofs import Lock, Proof
from nodewire.pay.nutzaps import authorship
from nodewire.protocol import kinds
from nodewire.protocol.committee import beacon, commitment, oracle_round, quorum_certificate
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment, CommitmentEvent
from nodewire.protocol.committee.committee import Committee
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.quorum_certificate import Certificate
from nodewire.protocol.job import feedback, request
from nodewire.protocol.job.chunk import claim
from nodewire.protocol.job.feedback import Due
from nodewire.protocol.job.plan import Assignment, Plan, Verification
from nodewire.protocol.market.snapshot import Snapshot
from nodewire.protocol.verification import verdict
from nodewire.protocol.verification.verdict import Verdict
from tests.protocol import documents
from tests.protocol.committee.actors import HOLDER, Seat, committee, digest, keys

GENESIS_S = 1_700_000_000
COMMITTEE, SEATS = committee(
    name="record",
    genesis_s=GENESIS_S,
    bond_holders=(HOLDER.public,),
    verify_rate_ppm=1_000_000,
    verify_share_ppm=150_000,
)
CUSTOMER, PROVIDERS = documents.CUSTOMER, documents.PROVIDERS
TASKS = ("driver", "stage.0", "stage.1")
PRICE_MSAT = 1_000


@dataclass
class PublicRecord:
    """`began_s` is when the job was requested. As a pool it answers from `events`; as a market it reads bodies."""

    began_s: int = field(default_factory=lambda: int(time.time()) - 200)
    committee: Committee = COMMITTEE
    seats: Sequence[Seat] = tuple(SEATS)
    events: list[Event] = field(default_factory=list)
    published: list[Event] = field(default_factory=list)
    certifies: dict[str, tuple[CommitmentEvent, ...]] = field(default_factory=dict)
    """Commitments by the digest of the body that certifies them."""

    def __post_init__(self) -> None:
        plan = documents.plan(
            committee=self.committee.digest(),
            epoch=self.epoch_at(self.began_s) - 1,
            tasks=tuple(
                Assignment(task=task, provider=keys.public, price_msat=PRICE_MSAT)
                for task, keys in zip(TASKS, PROVIDERS, strict=True)
            ),
            verification=Verification(policy="sampled", rate_ppm=1_000_000, share_ppm=150_000),
        )
        self.requested(plan)

    def requested(self, plan: Plan) -> None:
        """The job's request, with this plan."""
        tags, content = request.tags_and_content(
            plan,
            manifest_address=f"38840:{'cd' * 32}:tiny",
            certificate_event=documents.HASH,
            partials=(),
            relays=("ws://r",),
            ticket=documents.HASH,
        )
        event = events.sign(CUSTOMER, kinds.INFERENCE, created_at=self.began_s, tags=tags, content=content)
        self.events.append(event)
        self.request = request.parse(event)

    def epoch_at(self, at_s: int) -> int:
        return self.committee.epoch_at(at_s * 1000)

    def root(self, task: str, chunk: int, said: str = "") -> ChunkRoot:
        name = digest(f"{task}/{chunk}{said}")
        return ChunkRoot(request=self.request.id, task=task, chunk=chunk, attempt=0, root=name)

    def claimed(self, number: int, chunk: int, *, at_s: int = 0, **changes) -> Event:
        """Provider `number` asks for its payment of a chunk, by the root of its task."""
        due = {
            "chunk": chunk,
            "attempt": 0,
            "units": 1,
            "amount_msat": PRICE_MSAT,
            "root": claim([self.root(TASKS[number], chunk)]),
            **changes,
        }
        event = feedback.build(
            PROVIDERS[number],
            self.request.id,
            CUSTOMER.public,
            "payment-required",
            created_at=at_s or self.began_s + 2,
            due=Due(**due),
        )
        self.events.append(event)
        return event

    def committed(self, number: int, chunks: Sequence[int], epoch: int, said: str = "") -> Event:
        roots = tuple(self.root(TASKS[number], chunk, said) for chunk in chunks)
        document = Commitment(committee=self.committee.digest(), epoch=epoch, chunks=roots)
        at_s = self.committee.close_ms(epoch) // 1000
        event, _ = commitment.build(PROVIDERS[number], document, created_at=at_s)
        self.events.append(event)
        return event

    def certified(self, epoch: int, commitments: Sequence[Event], snapshot: str = documents.HASH) -> Body:
        """The epoch's certificate over these commitments, and its beacon's partials."""
        body = Body(
            committee=self.committee.digest(),
            epoch=epoch,
            snapshot=snapshot,
            commitments=commitment.certified_root([event.id for event in commitments]),
            inventories=tuple(sorted(digest(f"inventory/{i}/{epoch}") for i in range(3))),
            previous=self.committee.digest(),
        )
        at_s = self.committee.close_ms(epoch) // 1000
        voters = self.seats[: self.committee.quorum]
        votes = tuple(
            oracle_round.build_vote(s.keys, body.committee, f"epoch/{epoch}", body.digest(), created_at=at_s)
            for s in voters
        )
        self.events.append(quorum_certificate.build(voters[0].keys, Certificate(body, votes), created_at=at_s))
        self.events += [beacon.build(s.keys, body, s.index, s.share, created_at=at_s) for s in voters]
        self.certifies[body.digest()] = tuple(commitment.parse(event) for event in commitments)
        return body

    def pay(
        self,
        ledger: Ledger,
        number: int,
        chunk: int,
        *,
        attempt: int = 0,
        amount_msat: int = PRICE_MSAT,
        preimage: bytes = b"",
    ) -> None:
        key = Key(self.request.id, PROVIDERS[number].public, chunk, attempt)
        preimage = preimage or bytes([number]) * 16 + chunk.to_bytes(16, "big")
        ledger.plan(key, amount_msat)
        payment_hash = hashlib.sha256(preimage).hexdigest()
        ledger.begin(key.payee, [key], debts.Payment(payment_hash, "lnbcrt1", amount_msat))
        ledger.record(payment_hash, debts.PaymentAttempt("w"))
        ledger.record(payment_hash, debts.PaymentSettlement(preimage.hex(), 1))

    def nutzap(
        self, number: int, chunk: int, amount_sat: int, *, author: Keys = CUSTOMER, salt: str = "5a" * 32
    ) -> Event:
        """The customer's nutzap for a claim, of one proof that no mint has signed."""
        lock, mint = keys("lock"), "https://mint.example"
        nonce = authorship.nonce(CUSTOMER.public, salt, 0)
        secret = Lock((lock.public,), is_sig_all=False).secret(nonce)
        info = nip61.NutzapInfo(PROVIDERS[number].public, (), ((mint, ("sat",)),), lock.public)
        proof = Proof(amount_sat, "00" * 8, secret, "02" + "11" * 32).as_dict()
        event = nip61.build(
            author,
            info,
            mint,
            [json.dumps(proof)],
            created_at=self.began_s + 3,
            event=self.request.id,
            others=[["chunk", str(chunk)], ["attempt", "0"], ["salt", salt]],
        )
        self.events.append(event)
        return event

    def verdict(self, number: int, chunk: int, epoch: int, **changes) -> Verdict:
        """On the chunk that provider `number` committed to, which `epoch` drew; it passes if nothing is changed."""
        fields = {
            "committee": self.committee.digest(),
            "epoch": epoch,
            "request": self.request.id,
            "task": TASKS[number],
            "chunk": chunk,
            "attempt": 0,
            "provider": PROVIDERS[number].public,
            "root": self.root(TASKS[number], chunk).root,
            "outcome": "pass",
        }
        fields |= changes
        return Verdict(**{"price_msat": PRICE_MSAT if fields["outcome"] == "pass" else 0, **fields})

    def judged(self, said: Verdict, votes_for: Verdict | None = None) -> Event:
        """The certificate of a verdict; `votes_for`: what the oracles voted for in truth."""
        voted, voters = votes_for or said, self.seats[: self.committee.quorum]
        topic = verdict.topic(said.key)
        votes = tuple(
            oracle_round.build_vote(s.keys, said.committee, topic, voted.digest(), created_at=self.began_s + 9)
            for s in voters
        )
        event = verdict.build(voters[0].keys, verdict.Certificate(said, votes), created_at=self.began_s + 10)
        self.events.append(event)
        return event

    # As relays and as a market.

    @property
    def committee_digest(self) -> str:
        return self.committee.digest()

    async def snapshot(self, sha256: str) -> Snapshot:
        return Snapshot(committee=self.committee.digest(), epoch=0, nodes=(), events=())

    async def fetch(self, filters: Sequence[Filter], timeout_s: float = 1.0, *, max_events: int = 0) -> list[Event]:
        return [event for event in self.events if any(one.matches(event) for one in filters)]

    async def fetch_all(self, filters: Sequence[Filter], timeout_s: float = 1.0) -> list[Event]:
        return await self.fetch(filters)

    async def publish(self, event: Event, timeout_s: float = 1.0) -> None:
        self.events.append(event)
        self.published.append(event)

    async def commitments(self, body: Body) -> tuple[CommitmentEvent, ...]:
        return (await self.contents(body)).commitments

    async def contents(self, body: Body) -> Contents:
        return Contents(self.certifies[body.digest()], ())
