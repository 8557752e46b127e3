"""Whatever is asked of the holder in whatever order: every msat stays somebody's, and nobody is paid twice."""

import asyncio
import itertools
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import tests.pay.bond_market as bm
from nodewire.errors import NodewireError
from tests.pay.accounts.test_treasurer import World
from tests.pay.bond_market import CUSTOMER, OTHER, PROVIDER, VERIFIERS

STAKERS = {"driver": PROVIDER, "stage.0": OTHER}
PAYEES = [CUSTOMER, *VERIFIERS, *bm.ORACLES[:2], PROVIDER]
tasks, chunks = st.sampled_from(sorted(STAKERS)), st.integers(0, 2)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("lock"), tasks, st.integers(1, 20_000)),
        st.tuples(st.just("raise"), tasks, st.integers(0, 5_000)),
        st.tuples(st.just("bond"), tasks),
        st.tuples(st.just("release"), tasks),
        st.tuples(st.just("share"), chunks, st.sampled_from([1, bm.SHARE_MSAT, 5 * bm.SHARE_MSAT])),
        st.tuples(st.just("present"), tasks, chunks, st.sampled_from(["pass", "fail", "withheld", "unsure"])),
        st.tuples(st.just("claim"), st.integers(0, 5), st.sampled_from(range(len(PAYEES)))),
        st.tuples(st.just("payout"), st.sampled_from(range(len(PAYEES))), st.integers(1, 1_500)),
        st.tuples(st.just("state"), chunks, st.sampled_from([1, bm.SHARE_MSAT])),
        st.tuples(st.just("wait"), st.integers(1, 400)),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


class Walk:
    def __init__(self, folder):
        self.world = World(Path(folder) / "simnet.db")
        self.paid = Counter()
        self.count = itertools.count()

    def take(self, what, *arguments):
        world, treasurer, node = self.world, self.world.treasurer, self.world.nodes["provider"]
        match what, arguments:
            case "lock", (task, amount_msat):
                treasurer.lock(node, STAKERS[task].public, f"lock {next(self.count)}", amount_msat, world.until_s)
            case "raise", (task, amount_msat):
                key = f"raise {next(self.count)}"
                treasurer.top_up(node, STAKERS[task].public, key, amount_msat, world.until_s + 50)
            case "bond", (task,):
                treasurer.statement(STAKERS[task].public)
            case "release", (task,):
                treasurer.release(node, STAKERS[task].public)
            case "share", (chunk, amount_msat):
                asyncio.run(world.share(chunk, amount_msat=amount_msat))
            case "state", (chunk, amount_msat):
                world.treasurer.book_shares(bm.statement(chunk, amount_msat, amount_msat))
            case "present", (task, chunk, outcome):
                culprit = STAKERS[task].public if outcome == "fail" else ""
                provider = STAKERS[task].public
                changes = {"task": task, "chunk": chunk, "outcome": outcome, "culprit": culprit, "provider": provider}
                world.present(bm.verdict_of(**changes))
            case "claim", (number, payee):
                case = sorted(world.simnet.book.cases)[number % max(1, len(world.simnet.book.cases))]
                due_msat = treasurer.case_due_msat(case, PAYEES[payee].public)
                assert treasurer.claim(PAYEES[payee].public, case) >= due_msat
                self.paid[case, payee] += bool(due_msat)
            case "payout", (payee, amount_msat):
                key, before_msat = PAYEES[payee], world.balance("payee")
                due_msat = treasurer.due_msat(key.public)
                assert world.payout(key, amount_msat).state == "paid"
                assert world.balance("payee") == before_msat + amount_msat
                assert treasurer.due_msat(key.public) == due_msat - amount_msat
            case "wait", (seconds,):
                world.clock.now_s += seconds
                treasurer.sweep()
            case "restart", ():
                world.reopen()


@settings(max_examples=40)
@given(steps)
def test_the_books_balance_after_every_step(log):
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(folder)
        for step in log:
            try:
                walk.take(*step)
            except (NodewireError, IndexError):
                continue
            finally:
                walk.world.check()
        assert max(walk.paid.values(), default=0) <= 1
        walk.world.simnet.close()
