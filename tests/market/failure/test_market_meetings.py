"""Providers that nobody can dial: their ads name a splice, and jobs reach them without further configuration."""

import asyncio

import pytest

from tests.market.market_process import WIRE

pytestmark = pytest.mark.timeout(600)  # two providers start twice besides


@pytest.fixture
async def met_only(market):
    """bea and cyd, the fast stages, announce a splice and no address, while a test runs."""
    names = ("bea", "cyd")
    beside = ["--relay", market.relay, "--listen", "127.0.0.1:0"]
    market.spawn("splice", "splice", "--key", str(market.folder / "splice.nsec"), *beside)
    (splice,) = (await asyncio.to_thread(market.ready, "splice"))["addresses"]
    files = {name: market.config_of(name).read_text() for name in names}

    async def again(changed, wire) -> None:
        for name in names:
            market.stop_one(name)
            market.config_of(name).write_text(files[name].replace(WIRE, f"{WIRE}\n{changed}"))
        for name in names:
            await asyncio.to_thread(market.start_provider, name)

        def holds(snapshot) -> bool:
            ads = snapshot.ads({market.public[name] for name in names})
            return len(ads) == len(names) and all(wire(ad.wire) for ad in ads.values())

        await market.until(lambda snapshot: holds(snapshot) and market.is_free(*names)(snapshot))

    await again(f'announce = ["{splice}"]\nsame_host = false', lambda wire: wire == (splice,))
    yield names
    await again("", lambda wire: splice not in wire)
    market.stop_one("splice")


async def test_a_generation_runs_over_providers_that_can_be_met_only(market, met_only):
    async with market.customer("far") as far:
        # Where the machine is busy, a way around by the splice looks longer than the others are slow.
        others = tuple(sorted(market.public[name] for name in ("dan", "eve")))
        terms = far.terms.model_copy(update={"excluded": others})
        tokens = 0
        async for piece in far.generate(
            market.decoder["address"], "the cat sat on the mat", terms=terms, max_tokens=70
        ):
            tokens += len(piece.ids)
        done = far.last
    assert tokens == 70
    assert all(done["paid_msat"][market.public[name]] > 0 for name in met_only)
