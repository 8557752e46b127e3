"""One corrupt node among the twelve of a job, in one process: the committee's rules on a clock of their own.

What is real: the plan (`assign/2`), the engine that computes and computes again, the cheats of tests/faults, openings
and commitments, the draw, the state machines of four oracles with signed votes, the certificates, the holder's book of
bonds. What is not: relays, the wire, processes and the beacon (random here); bench.verification.corrupt has them all.

    epoch e      the providers' roots are certified, and every one is drawn
    e + 1        the first verifier of each has computed it from what was committed to, and its root is certified
    to e + 9     oracles pull openings, compare, compute again, vote
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.tasks import dag
from bench.verification.corrupt import MODEL, Trial, drawn
from bench.verification.honest import plain
from bench.verification.recompute import FAULTS
from nodewire.graph import entry as graph
from nodewire.graph.registration.encoder_splitter import split_encoder
from nodewire.kind import Actor, Limits
from nodewire.nostr import event as events
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.oracle.court import verdict_rules
from nodewire.oracle.court.case import (
    EpochDraw,
    OpeningResult,
    PublishVerdict,
    PullOpening,
    Recompute,
    RecomputeResult,
    SayVote,
    State,
    Tick,
    VerdictCame,
    VoteCame,
    VoteRecord,
    start,
)
from nodewire.oracle.setup import create_committee, load_seat
from nodewire.plan.assign import CertifiedEpoch, assign
from nodewire.plan.sample import draw
from nodewire.protocol import kinds
from nodewire.protocol.committee import commitment, oracle_round
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment, CommitmentEvent
from nodewire.protocol.committee.committee import Committee
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.job import chunk
from nodewire.protocol.job import request as job
from nodewire.protocol.job.chunk import Leaf, Opening, leaf_of
from nodewire.protocol.job.plan import Terms
from nodewire.protocol.market.ad import TaskOffer
from nodewire.protocol.market.snapshot import HeldTasks, Node, Snapshot
from nodewire.protocol.model.manifest import CUSTOMER, Manifest
from nodewire.protocol.tensors.frame import Frame
from nodewire.protocol.verification import verdict
from nodewire.protocol.verification.sample import Sample
from processes.progress import say
from simnet.service import Fees, Simnet
from simnet.treasurer import Treasurer

EPOCH = 100
EPOCHS = 9
EPOCH_MS, STEP_MS = 2_000, 500
PRICE_MSAT = 3_001
BOND_MSAT = 20_000_000
VERIFIERS = 3
_ROOM_BYTES = 2**30
_YEAR_S = 366 * 86_400
Leaves = Mapping[str, tuple[Leaf, ...]]
"""By task."""


def trials(count: int, rng: random.Random) -> list[Trial]:
    """`count` trials, each of twelve new providers, one of them corrupt."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="nodewire-tribunal-") as folder:
        court = _Court.found(Path(folder), rng)
        done = []
        for number in range(count):
            trial = drawn(court.model.tasks, rng)
            court.hold(trial)
            done.append(trial)
            if (number + 1) % 20 == 0 or number + 1 == count:
                say(f"in one process {number + 1}/{count}: {sum(one.exact for one in done)} exact")
        return done


@dataclass(slots=True)
class _Model:
    """The encoder in pieces, loaded honestly and with another model's weights."""

    manifest: Manifest
    honest: Mapping[str, Actor]
    other: Mapping[str, Actor]

    @property
    def tasks(self) -> list[str]:
        return [task.name for task in self.manifest.tasks]

    @classmethod
    def load(cls, folder: Path) -> _Model:
        from nodewire_faults.engine import exchange_weights, noisy

        made = split_encoder(dag.make(folder / "encoder"), parse_size(dag.TARGET), folder, name=MODEL)

        def actors() -> dict[str, Actor]:
            limits = Limits(memory_bytes=_ROOM_BYTES)
            return {
                task.name: graph.load(
                    task.engine, made.blobs[task.program.sha256].read_bytes(),
                    [made.blobs[weight.sha256] for weight in task.weights], limits,
                )
                for task in made.manifest.tasks
            }  # fmt: skip

        honest, read = actors(), graph._read
        exchange_weights(noisy(0.1))
        other = actors()
        graph._read = read
        return cls(made.manifest, honest, other)

    def run(self, texts: tuple[str, ...], corrupt: Mapping[str, Actor]) -> dict[str, list[tuple[Frame[Any], Any]]]:
        """By task, each frame that it took and the frames that it gave."""
        target = {edge.name: edge.target for edge in self.manifest.edges}
        actors = {**self.honest, **corrupt}
        for actor in actors.values():
            actor.open("job", {})
        edge = next(edge.name for edge in self.manifest.edges if edge.source == CUSTOMER)
        body = torch.frombuffer(bytearray(json.dumps(list(texts)).encode()), dtype=torch.uint8)
        waiting, done = [Frame(edge, 0, (body,), {"chunk": 0})], {task: [] for task in self.tasks}
        while waiting:
            frame = waiting.pop(0)
            if (task := target[frame.edge]) != CUSTOMER:
                outs = actors[task].receive("job", frame)
                done[task].append((frame, outs))
                waiting += outs
        for actor in actors.values():
            actor.close("job")
        return done

    def again(self, task: str, taken: list[Frame[Any]]) -> tuple[Leaf, ...]:
        """The leaves of a task's outputs, computed honestly from what it was given."""
        actor = self.honest[task]
        actor.open("again", {})
        outs = [out for frame in taken for out in actor.receive("again", frame)]
        actor.close("again")
        return self.leaves(outs)

    def leaves(self, outs: list[Frame[Any]]) -> tuple[Leaf, ...]:
        order, digest = {edge.name: i for i, edge in enumerate(self.manifest.edges)}, self.manifest.digest()
        return tuple(sorted((leaf_of(digest, plain(out)) for out in outs), key=lambda leaf: order[leaf.edge]))

    def answer(self, done: Mapping[str, list[tuple[Frame[Any], Any]]]) -> tuple[Leaf, ...]:
        """What the customer is given."""
        return self.leaves([out for _, outs in done[self.tasks[-1]] for out in outs])


@dataclass(slots=True)
class _Job:
    """One job's evidence. `openings` by (node, task); `taken` by task what it was given; `sound`: tasks whose inputs
    hash to certified roots."""

    request: Event
    providers: Mapping[str, Keys]
    verifiers: Mapping[str, Keys]
    openings: dict[tuple[str, str], Opening]
    roots: dict[tuple[str, str, str, int, int], str]
    taken: Mapping[str, list[Frame[Any]]]
    sound: set[str]


@dataclass(slots=True)
class _Court:
    model: _Model
    committee: Committee
    oracles: list[Keys]
    treasurer: Treasurer
    account: str
    rng: random.Random
    now: list[float]
    """Of the holder's clock: unix seconds."""
    answers: dict[str, Any] = field(default_factory=dict)
    """What the cheat `stale` has put out before, by edge."""

    @classmethod
    def found(cls, folder: Path, rng: random.Random) -> _Court:
        if str(FAULTS) not in sys.path:
            sys.path.append(str(FAULTS))
        holder, genesis_s = Keys.generate(), int(time.time())
        committee = create_committee(
            folder / "committee", name="main", f=1, genesis_s=genesis_s, epoch_ms=EPOCH_MS, skew_ms=200, beat_ms=1_000,
            bond_holders=[holder.public], verify_rate_ppm=1_000_000, verify_share_ppm=150_000,
        )  # fmt: skip
        seats = [load_seat(folder / "committee" / f"oracle-{i}", committee) for i in range(1, 5)]
        now = [float(genesis_s)]
        simnet = Simnet(folder / "simnet.db", Fees(0, 0), 10**15, lambda: now[0])
        account, _ = simnet.open_account("everybody", 10**15)
        treasurer = Treasurer(simnet, holder, committee)
        return cls(_Model.load(folder), committee, [seat.keys for seat in seats], treasurer, account, rng, now)

    def hold(self, trial: Trial) -> None:
        """A job with the trial's corrupt node, judged; what came of it is written down in `trial`."""
        done, spoilt = self._computed(trial)
        trial.spoilt = spoilt
        providers = {task: Keys.generate() for task in self.model.tasks}
        verifiers = {keys.public: keys for keys in (Keys.generate() for _ in range(VERIFIERS))}
        for keys in (*providers.values(), *verifiers.values()):
            until_s = int(self.now[0]) + _YEAR_S
            self.treasurer.lock(self.account, keys.public, "bond", BOND_MSAT, until_s)
        found, request, snapshot = self._bought(trial, done, providers, verifiers)
        certified = _judged(self, found, job.parse(request), snapshot)
        names = {keys.public: task for task, keys in providers.items()} | dict.fromkeys(verifiers, "verifier")
        verdicts = [verdict.parse(event).verdict for event in certified]
        for event in certified:
            self.treasurer.present(event, request)
        own = [one.outcome for one in verdicts if one.task == trial.task]
        trial.verdicts, trial.outcome = len(verdicts), own[0] if own else ""
        trial.outcomes = {name: sum(v.outcome == name for v in verdicts) for name in {v.outcome for v in verdicts}}
        culprits = {c for one in verdicts for c in (one.culprit, *getattr(one, "accomplices", ())) if c}
        trial.convicted = tuple(sorted(names[culprit] for culprit in culprits))
        gone = [public for public in names if self.treasurer.bond(public).bond.remainder_msat < BOND_MSAT]
        trial.slashed = tuple(
            sorted(names[public] for public in names if self.treasurer.bond(public).bond.state == "slashed")
        )
        exact = trial.convicted == trial.slashed == (trial.task,)
        trial.exact = exact and {names[public] for public in gone} <= {trial.task}

    def _computed(self, trial: Trial) -> tuple[dict[str, list[tuple[Frame[Any], Any]]], bool]:
        from nodewire_faults.cheats import Honest, Scaled, Skipped, Stale, Wrong
        from nodewire_faults.engine import Faulty

        cheats: dict[str, Callable[[], Any]] = {
            "wrong": Wrong, "scaled": Scaled, "skipped": Skipped, "copied": Skipped, "other": Honest,
            "stale": lambda: Stale(self.answers),
        }  # fmt: skip
        actor = (self.model.other if trial.cheat == "other" else self.model.honest)[trial.task]
        corrupt = {trial.task: Faulty(actor, cheats[trial.cheat])}
        texts = list(dag.SENTENCES)
        self.rng.shuffle(texts)
        if trial.cheat == "stale":
            self.answers.clear()
            self.model.run(texts[1], corrupt)
        honest, done = self.model.run(texts[0], {}), self.model.run(texts[0], corrupt)
        return done, self.model.answer(honest) != self.model.answer(done)

    def _bought(
        self,
        trial: Trial,
        done: Mapping[str, list[tuple[Frame[Any], Any]]],
        providers: Mapping[str, Keys],
        verifiers: Mapping[str, Keys],
    ) -> tuple[_Job, Event, Snapshot]:
        """The plan and request, and what all nodes commit to and can open."""
        digest, customer = self.model.manifest.digest(), Keys.generate()

        def node(keys: Keys, tasks: list[str]) -> Node:
            offers = tuple(TaskOffer(task=task, price_msat=PRICE_MSAT, us_per_position=1_000) for task in sorted(tasks))
            held = HeldTasks(manifest=digest, free=4, tasks=offers)
            return Node(
                pubkey=keys.public, beat=self._hex(), ad=self._hex(), held=(held,), bond_msat=BOND_MSAT, region="",
                load_ppm=0, coordinates=(0, 0, 0), epochs=1,
            )  # fmt: skip

        nodes = [node(keys, [task]) for task, keys in providers.items()]
        nodes += [node(keys, self.model.tasks) for keys in verifiers.values()]
        snapshot = Snapshot(
            committee=self.committee.digest(),
            epoch=EPOCH - 1,
            nodes=tuple(sorted(nodes, key=lambda one: one.pubkey)),
            events=(),
        )
        body = Body(
            committee=snapshot.committee, epoch=snapshot.epoch, snapshot=hashlib.sha256(snapshot.pack()).hexdigest(),
            commitments=self._hex(), inventories=tuple(sorted(self._hex() for _ in range(3))), previous=self._hex(),
        )  # fmt: skip
        terms = Terms(
            max_chunk_msat=10**9, max_total_msat=10**10, verify="sampled",
            trusted=tuple(sorted(keys.public for keys in providers.values())),
        )  # fmt: skip
        plan = assign(
            self.model.manifest, snapshot, epoch=CertifiedEpoch(self.committee, body, self._hex()), terms=terms,
            customer=customer.public,
        )  # fmt: skip
        tags, content = job.tags_and_content(
            plan, manifest_address=f"38840:{'cd' * 32}:{MODEL}", certificate_event=self._hex(), partials=(),
            relays=("ws://127.0.0.1:1",), ticket=self._hex(),
        )  # fmt: skip
        request = events.sign(customer, kinds.INFERENCE, created_at=int(self.now[0]), tags=tags, content=content)
        found = _Job(request, providers, verifiers, {}, {}, {t: [f for f, _ in done[t]] for t in done}, set())
        for task, keys in providers.items():
            outs = [out for _, given in done[task] for out in given]
            self.commit(found, keys, task, self.model.leaves(outs))
        if trial.cheat == "copied":
            others = [keys for task, keys in providers.items() if task != trial.task]
            copied = self.rng.choice([root for key, root in found.roots.items() if key[0] == others[0].public])
            found.roots[providers[trial.task].public, request.id, trial.task, 0, 0] = copied
        for task in self.model.tasks:
            makers = {edge.source for edge in self.model.manifest.inputs(task)} - {CUSTOMER}
            if all(self._opens(found, providers[maker].public, maker) for maker in makers):
                found.sound.add(task)
        return found, request, snapshot

    def commit(self, found: _Job, keys: Keys, task: str, leaves: tuple[Leaf, ...]) -> None:
        opening = chunk.opening(
            keys, self.model.manifest, leaves, request=found.request.id, task=task, chunk=0, attempt=0
        )
        found.openings[keys.public, task] = opening
        found.roots[keys.public, found.request.id, task, 0, 0] = opening.root()

    def _opens(self, found: _Job, public: str, task: str) -> bool:
        return found.openings[public, task].root() == found.roots[public, found.request.id, task, 0, 0]

    def _hex(self) -> str:
        return self.rng.randbytes(32).hex()

    def committed(self, found: _Job) -> list[CommitmentEvent]:
        """One commitment event of each node."""
        by_node: dict[str, list[ChunkRoot]] = {}
        for (public, request, task, number, attempt), root in found.roots.items():
            one = ChunkRoot(request=request, task=task, chunk=number, attempt=attempt, root=root)
            by_node.setdefault(public, []).append(one)
        signers = {keys.public: keys for keys in (*found.providers.values(), *found.verifiers.values())}
        made = []
        for public, roots in by_node.items():
            chunks = tuple(sorted(roots, key=lambda root: root.key))
            said = Commitment(committee=self.committee.digest(), epoch=EPOCH, chunks=chunks)
            event, _ = commitment.build(signers[public], said, created_at=int(self.now[0]))
            made.append(commitment.parse(event))
        return made

    def beacon(self) -> str:
        return self._hex()


def _judged(court: _Court, found: _Job, request: job.Request, snapshot: Snapshot) -> list[Event]:
    """The certificates that four oracles come to."""
    committee, manifest = court.committee, court.model.manifest
    manifests = {request.id: manifest}
    samples = draw(committee, court.beacon(), court.committed(found), {request.id: request}, snapshot)
    provided = dict(found.roots)
    same = {
        one.key: tuple(other for other in samples if one.root == other.root and one.key != other.key) for one in samples
    }
    for sample in samples:
        if sample.verifiers and sample.task in found.sound:
            keys = found.verifiers[sample.verifiers[0]]
            court.commit(found, keys, sample.task, court.model.again(sample.task, found.taken[sample.task]))
    verified = {key: root for key, root in found.roots.items() if key not in provided}
    oracles = {keys.public: keys for keys in court.oracles}
    now_ms = committee.close_ms(EPOCH)
    states = {public: start(committee, public, can_recompute=True, now_ms=now_ms) for public in oracles}
    published: dict[str, Event] = {}

    def feed(public: str, what: Any) -> None:
        states[public], actions = verdict_rules.apply(what, states[public])
        for action in actions:
            _act(court, found, oracles[public], action, feed, states, published, now_ms)

    for number in range(EPOCHS + 1):
        roots = provided if number == 0 else verified if number == 1 else {}
        body = hashlib.sha256(b"%d" % number).hexdigest()
        certified = EpochDraw(EPOCH + number, body, samples if not number else (), manifests, roots, others=same)
        for public in oracles:
            feed(public, certified)
        for _ in range(EPOCH_MS // STEP_MS):
            now_ms += STEP_MS
            court.now[0] += STEP_MS / 1000
            for public in oracles:
                feed(public, Tick(now_ms))
    return list(published.values())


def _act(
    court: _Court,
    found: _Job,
    me: Keys,
    action: Any,
    feed: Callable[[str, Any], None],
    states: Mapping[str, State],
    published: dict[str, Event],
    now_ms: int,
) -> None:
    match action:
        case PullOpening(sample, _, node, key):
            other = sample.key if sample.key != key else ""
            feed(me.public, OpeningResult(key, node, found.openings.get((node, sample.task)), other))
        case Recompute(sample, _):
            feed(me.public, RecomputeResult(sample.key, _again(court, found, sample)))
        case SayVote(key, _, x, said):
            topic = verdict.topic(key)
            vote = oracle_round.build_vote(me, court.committee.digest(), topic, x, created_at=now_ms // 1000)
            feed(me.public, VoteRecord(key, said))
            for public in states:
                feed(public, VoteCame(vote))
        case PublishVerdict(certificate):
            key = certificate.verdict.key
            if key not in published:
                published[key] = verdict.build(me, certificate, created_at=now_ms // 1000)
                for public in states:
                    feed(public, VerdictCame(certificate))


def _again(court: _Court, found: _Job, sample: Sample) -> tuple[Leaf, ...] | None:
    """As `nodewire.verify.recomputation`: from inputs that hash to certified roots, or not at all."""
    if sample.task not in found.sound:
        return None
    return court.model.again(sample.task, found.taken[sample.task])
