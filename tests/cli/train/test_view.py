"""What `nodewire train` shows while it runs, and what it leaves behind, over a market in one process."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree

import orjson
import pytest
import torch
from rich.console import Console

from nodewire.cli.common.braille import curve
from nodewire.cli.common.training_results import place, write
from nodewire.cli.train.view import TrainingView
from nodewire.errors import BadInput
from nodewire.nostr.keys import Keys
from nodewire.nostr.pool import Pool
from nodewire.training.customer.api import TrainingResult
from nodewire.training.customer.dataset import look
from nodewire.training.customer.machine import events as happened
from nodewire.training.customer.machine.journal import Journal
from nodewire.training.customer.machine.state import State
from nodewire.training.customer.market.context import TrainingOrder
from nodewire.training.customer.policy import provider_selection
from nodewire.training.customer.policy.payment_retry import PaymentWait
from nodewire.training.customer.quote import quote
from nodewire.training.customer.round_history import History
from nodewire.training.engine import bare_loop, state
from tests.kinds.digits import RECIPE, dataset
from tests.training import small_market
from tests.training.market.test_training_market import nothing
from tests.training.small_market import BUDGET_MSAT, LEAST_MSAT, Conduct, provider, train

torch.set_num_threads(1)
TWO_ROUNDS = RECIPE.model_copy(update={"rounds": 2})


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


def recorded(width: int = 120, *, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), width=width, height=40, force_terminal=terminal, record=True, highlight=False)


def drawn(console: Console, view: TrainingView) -> str:
    with console.capture() as captured:
        console.print(view)
    return re.sub(r"\x1b\[[0-9;]*m", "", captured.get())


async def test_the_live_view_shows_rounds_shards_losses_and_money(market):
    console, seen = recorded(), []
    view = TrainingView(TWO_ROUNDS, 10**6, console, seconds=10.0)

    def watch(state_, event, who):
        view.update(state_, event, who)
        seen.append(drawn(console, view))

    async with provider(market, "ada"), provider(market, "bea"):
        done, _ = await train(market, "dora", TWO_ROUNDS, on_change=watch)
    told = "\n".join(seen)
    assert "round 1 of 2" in seen[0]
    assert {"asked", "working", "accepted"} <= set(told.split())
    assert f"held-out loss {done.losses[-1] / 1e6:.4f} after round 2" in seen[-1]
    assert "audited ok (round 2)" in seen[-1]
    assert f"spent {(view.history.paid_msat + view.history.fees_msat) / 1000:,.0f} of 1,000 sat" in seen[-1]
    assert view.history.paid_msat == 4 * LEAST_MSAT
    assert "done" in seen[-1]
    assert re.search("[\u2801-\u28ff]", seen[-1])


def test_a_round_that_is_made_again_is_told_with_whose_work_it_is_for():
    console = recorded(width=200)
    view = TrainingView(TWO_ROUNDS, 10**6, console, names={"ab" * 32: "ada"})
    failed = (("01" * 32, "ab" * 32), ("02" * 32, "ab" * 32), ("02" * 32, "cd" * 32))
    view.update(State(rounds=9), happened.StepRollback(6, failed), "")
    assert "round 7 is made again: the work of ada and cdcdcdcd failed its audit" in console.export_text()


async def test_elsewhere_than_on_a_terminal_it_is_told_in_lines_with_every_reason(market):
    console, tables = recorded(terminal=False), []
    view = TrainingView(TWO_ROUNDS, 10**6, console)

    def watch(state_, event, who):
        view.update(state_, event, who)
        tables.append(drawn(recorded(), view))

    async with (
        provider(market, "ada", Conduct(alter=nothing)) as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        with view.shown(True):
            await train(market, "dora", TWO_ROUNDS, on_change=watch)
    told = console.export_text()
    assert "\x1b" not in told
    assert re.search(rf"round 1, shard [01]: {ada.public[:8]} rejected: norm", told)
    assert "round 2 held-out loss" in told
    assert any(f"{ada.public[:8]} rejected: norm" in table for table in tables)
    assert "the same command goes on" in view.stopped("stopped")


async def test_outer_steps_that_are_bought_are_shown_and_counted(market):
    console, tables = recorded(), []
    view = TrainingView(TWO_ROUNDS, 10**6, console)

    def watch(state_, event, who):
        view.update(state_, event, who)
        tables.append(drawn(recorded(), view))

    async with provider(market, "ada"), provider(market, "oona", kinds=(8842,)) as oona:
        done, _ = await train(
            market, "dora", TWO_ROUNDS, TrainingOrder(1, BUDGET_MSAT, buys_steps=True), on_change=watch
        )
    assert done.is_trained
    assert any(re.search(rf"step +{oona.public[:8]} +working", table) for table in tables)
    assert view.history.paid_msat == 4 * LEAST_MSAT
    delivered = sum(work.bytes for work in (done.theta, done.outer.momenta) if work)
    assert view.history.down_bytes > 2 * delivered


async def test_a_quote_is_what_it_comes_to(market):
    async with provider(market, "ada"), provider(market, "bea"):
        async with Pool([market.relay]) as pool:
            ads = await provider_selection.trainers(pool)
        made = quote(TWO_ROUNDS, 8840, look(TWO_ROUNDS, market.data), 2, ads, servers=1)
        await train(market, "dora", TWO_ROUNDS, TrainingOrder(2, made.total_msat))
    journal = Journal(market.folder / "dora" / "journal.db")
    history = History.replay(journal.events())
    with_audits = History.replay(journal.events(), Keys.from_file(market.folder / "dora" / "key"))
    journal.close()
    assert history.down_bytes < with_audits.down_bytes <= made.down_bytes
    assert history.paid_msat == made.total_msat == 4 * LEAST_MSAT
    assert 0 < history.fees_msat <= made.fees_msat
    assert made.up_bytes == pytest.approx(history.up_bytes, rel=0.05)
    results_bytes = made.down_bytes - made.rounds * made.audit_round_bytes
    assert results_bytes == pytest.approx(history.down_bytes, rel=0.05)
    assert [point.round for point in history.points] == [0, 1]
    assert history.points[0].down_bytes < history.points[1].down_bytes


async def trained(market, name: str) -> TrainingResult:
    async with provider(market, "ada"), provider(market, "bea"):
        done, weights = await train(market, name, TWO_ROUNDS)
    journal = Journal(market.folder / name / "journal.db")
    history = History.replay(journal.events())
    journal.close()
    return TrainingResult("ab" * 32, weights, done, history.paid_msat, history.fees_msat, history)


async def test_results_are_weights_a_curve_and_a_summary(market, tmp_path):
    done, out = await trained(market, "dora"), tmp_path / "out"
    said = write(place(out), TWO_ROUNDS, done)
    assert sorted(path.name for path in out.iterdir()) == [
        "curve.svg",
        "summary.json",
        "weights.safetensors",
    ]
    assert (out / "weights.safetensors").read_bytes() == state.pack(bare_loop.run(TWO_ROUNDS, dataset(), 2)[0])
    assert orjson.loads((out / "summary.json").read_bytes()) == said
    assert [point["loss"] for point in said["curve"]] == said["losses"]
    assert said["curve"][-1]["paid_msat"] <= said["paid_msat"] == 4 * LEAST_MSAT
    words = "".join(ElementTree.parse(out / "curve.svg").getroot().itertext())
    assert {"held-out loss", "sat spent, fees included"} <= {line.strip() for line in words.splitlines()}
    first = (out / "curve.svg").read_bytes()
    write(out, TWO_ROUNDS, done)
    assert (out / "curve.svg").read_bytes() == first


async def test_a_name_that_ends_in_safetensors_gets_the_weights_alone(market, tmp_path):
    done, out = await trained(market, "dora"), tmp_path / "w.safetensors"
    write(place(out), TWO_ROUNDS, done)
    assert out.read_bytes() == done.weights
    with pytest.raises(BadInput, match="does not exist"):
        place(tmp_path / "nowhere" / "w.safetensors")


def test_a_place_that_cannot_be_written_to_is_refused_before_anything_is_paid(tmp_path):
    with pytest.raises(BadInput, match="nowhere"):
        place(tmp_path / "nowhere" / "out")
    (tmp_path / "taken").write_text("")
    with pytest.raises(BadInput, match="taken"):
        place(tmp_path / "taken")


def test_a_curve_falls_from_the_upper_left_to_the_lower_right():
    lines = curve([4.0, 3.0, 2.0, 1.0], 10, 3)
    assert [len(line) for line in lines] == [10] * 3
    assert ord(lines[0][0]) & 0x01
    assert ord(lines[-1][-1]) & 0x80
    assert lines[0][-1] == lines[-1][0] == "\u2800"
    assert curve([], 4, 1) == ["\u2800" * 4]
    assert set(*curve([1.0], 4, 1)) == {"⠤"}


def test_what_the_end_waits_for_is_said_and_for_how_long():
    console = recorded(width=200, terminal=False)
    view = TrainingView(TWO_ROUNDS, 10**6, console, names={"ab" * 32: "ada"})
    view.update(State(rounds=2, round=2), PaymentWait((("ab" * 32, 880), ("cd" * 32, 2_000)), 90.0), "")
    told = console.export_text()
    assert "waiting up to 90 s for ada to take 0.880 sat, cdcdcdcd to take 2.000 sat that it is owed" in told
