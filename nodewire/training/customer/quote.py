"""What a training would take and cost, before anyone is asked: by the recipe's formulas and the trainers' ads."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nodewire.errors import NoProvider, OverBudget
from nodewire.pay.accounts.payer import Fees
from nodewire.protocol.market.ad import MAX_UNIT_MSAT
from nodewire.store.sealed_blobs import sealed_bytes
from nodewire.training.customer.machine.state import State
from nodewire.training.customer.policy import provider_selection
from nodewire.training.customer.policy.expected_cost import Record
from nodewire.training.protocol.outer_step import MAX_INPUTS
from nodewire.training.protocol.round import work_gflop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.training.customer.dataset import Dataset
    from nodewire.training.customer.policy.provider_selection import Need
    from nodewire.training.protocol.recipe import Recipe
    from nodewire.training.protocol.trainer_ad import Trainer

_HEADER_BYTES = 128
"""About what a safetensors file says of each tensor."""
_FEES = Fees()


@dataclass(frozen=True, slots=True)
class Offer:
    """One trainer on the market. `shards`: how many of each round it would get; `refusal`: why none, or empty."""

    public: str
    name: str
    price_msat: int
    """Of one shard's round."""
    deposit_msat: int
    gflops: int
    seconds: float
    """Of one shard's round, at the speed that it claims."""
    shards: int
    refusal: str


@dataclass(frozen=True, slots=True)
class Quote:
    """Sizes are those of `Recipe`; bytes are the customer's own traffic; money is in msat.

    A deposit is a part of a round's price, paid before it. `fees_msat` is the most that routing may cost: it comes on
    top of `total_msat`, which is what a budget bounds.
    """

    recipe: str
    digest: str
    family: str
    rounds: int
    left: int
    """Rounds that an earlier run has not made."""
    shards: int
    parameters: int
    trained: int
    memory_bytes: int
    """What a provider's round takes, with shard and result."""
    flops_per_round: int
    """Of one shard."""
    gflop: int
    data_bytes: int
    data_rows: int
    up_first_bytes: int
    """All shards, and what stays frozen under an adapter; once."""
    up_round_bytes: int
    down_round_bytes: int
    audit_round_bytes: int
    """Of `down_round_bytes`, at most, what audits have shown."""
    offers: tuple[Offer, ...]
    round_msat: int
    deposit_msat: int
    """Of the first round, before it."""
    paid_msat: int
    """What an earlier run has paid or owes."""
    total_msat: int
    """Rounds, and outer steps where they are bought."""
    fees_msat: int
    seconds: float
    """At the speeds that trainers claim, one round after the other."""
    step_msat: int = 0
    """Of one outer step, where they are bought and somebody sells them."""
    steps_msat: int = 0
    """Of all that are to come, in `total_msat`; one for which the budget has no room is made here."""

    @property
    def up_bytes(self) -> int:
        return self.up_first_bytes + (self.rounds + 1) * self.up_round_bytes

    @property
    def down_bytes(self) -> int:
        return self.rounds * self.down_round_bytes

    def document(self) -> dict[str, Any]:
        """As plain data, for `--json`."""
        return {**asdict(self), "up_bytes": self.up_bytes, "down_bytes": self.down_bytes}

    def check(self, budget_msat: int) -> None:
        """Whether it can be bought to its end.

        Raises:
            NoProvider: no trainer fits; says why.
            OverBudget: all rounds together cost more; says what would do.

        """
        if not self.left:
            return
        if not any(offer.shards for offer in self.offers):
            refusals = "; ".join(f"{offer.name} {offer.refusal}" for offer in self.offers if offer.refusal)
            raise NoProvider("trainers", refusals or "nobody on these relays trains")
        needed_msat = self.total_msat - self.steps_msat
        if needed_msat <= budget_msat:
            return
        said = f"{needed_msat} msat for {self.rounds} rounds on {self.shards} shards, at most {budget_msat} msat"
        left_msat = budget_msat - self.paid_msat
        if (rounds := left_msat // max(1, self.round_msat)) > 0:
            said += (
                f"; it would do for {rounds} more rounds" if self.paid_msat else f"; it would do for {rounds} rounds"
            )
        raise OverBudget("--budget", said)


def quote(
    recipe: Recipe,
    kind: int,
    data: Dataset,
    shards: int,
    market: Mapping[str, Trainer],
    *,
    servers: int,
    state: State | None = None,
    buys_steps: bool = False,
) -> Quote:
    """What `recipe` would take on so many shards of `data`; `state` is where an earlier run stands.

    `servers` is on how many blob servers everything is put; `buys_steps` as `TrainingOrder` has it.

    Raises:
        BadData: too few rows for so many shards.

    """
    header = _HEADER_BYTES * (len(recipe.shapes()) + 1)
    shard_bytes = sealed_bytes(data.shard_bytes(recipe, shards) + _HEADER_BYTES)
    theta_bytes = sealed_bytes(recipe.state_bytes() + header)
    audit_bytes = _audited(recipe) * sealed_bytes((1 + recipe.moments()) * recipe.state_bytes() + 2 * header)
    gflop = work_gflop(recipe, recipe.steps)
    frozen_bytes = _frozen_bytes(recipe)
    weights_bytes = max(theta_bytes, frozen_bytes)
    need = provider_selection.need_of(recipe, kind, shard_bytes=shard_bytes, weights_bytes=weights_bytes, gflop=gflop)
    state = state or State()
    allowed = {public: ad for public, ad in market.items() if public not in state.banned}
    dealt = _dealt(need, shards, allowed)
    turns = {public: -(-dealt[public] // ad.concurrency) for public, ad in market.items()}
    offers = _offers(market, need, dealt)
    round_msat = sum(offer.shards * offer.price_msat for offer in offers)
    deposit_msat = sum(offer.shards * offer.deposit_msat for offer in offers)
    left = recipe.rounds - state.round
    # What is under way has been asked for: what it costs is committed already.
    open_ = sum(work.status not in ("idle", "missed") for work in state.works)
    to_come_msat = left * round_msat - (round_msat * open_ // shards if left else 0)
    step_msat, step_fees_msat = _step(recipe, shards, allowed) if buys_steps and round_msat else (0, 0)
    steps = max(0, left - (state.outer.status != "idle"))
    return Quote(
        recipe=recipe.name,
        digest=recipe.digest(),
        family=recipe.family.name,
        rounds=recipe.rounds,
        left=left,
        shards=shards,
        parameters=recipe.parameters(),
        trained=recipe.trained(),
        memory_bytes=need.memory_bytes,
        flops_per_round=recipe.flops_per_round(),
        gflop=gflop,
        data_bytes=data.bytes,
        data_rows=data.rows,
        up_first_bytes=servers * (shards * shard_bytes + frozen_bytes),
        up_round_bytes=servers * theta_bytes,
        down_round_bytes=shards * (sealed_bytes(recipe.upload_bytes() + header) + audit_bytes),
        audit_round_bytes=shards * audit_bytes,
        offers=offers,
        round_msat=round_msat,
        deposit_msat=0 if state.round else deposit_msat,
        paid_msat=state.committed_msat,
        total_msat=state.committed_msat + to_come_msat + steps * step_msat,
        fees_msat=_fees_msat(offers, left, state) + steps * step_fees_msat,
        seconds=left * max((offer.seconds * turns[offer.public] for offer in offers), default=0.0),
        step_msat=step_msat,
        steps_msat=steps * step_msat,
    )


def _offers(market: Mapping[str, Trainer], need: Need, dealt: Mapping[str, int]) -> tuple[Offer, ...]:
    """Of all, those first who would get shards."""
    offers = (_offer(public, ad, need, dealt.get(public, 0)) for public, ad in market.items())
    return tuple(sorted(offers, key=lambda offer: (-offer.shards, bool(offer.refusal), offer.price_msat, offer.name)))


def _fees_msat(offers: Sequence[Offer], left: int, state: State) -> int:
    """The most that routing may cost in the rounds that are left."""
    fees_msat = left * sum(offer.shards * _fee_msat(offer.price_msat) for offer in offers)
    # A deposit is paid before the first round, and before every shard that somebody takes beside one of the same round.
    for offer in offers:
        if offer.deposit_msat:
            more = max(0, offer.shards - 1)
            fees_msat += _fee_msat(offer.deposit_msat) * (left * more + (0 if state.round else offer.shards - more))
    return fees_msat


def _fee_msat(part_msat: int) -> int:
    """The most that routing a part may cost, by itself and in whole units."""
    return _FEES.most(part_msat + MAX_UNIT_MSAT)


def _step(recipe: Recipe, shards: int, market: Mapping[str, Trainer]) -> tuple[int, int]:
    """What an outer step of so many results costs where it is bought, and the most that routing may.

    Nothing if nobody sells it, for then it is made here.
    """
    if shards > MAX_INPUTS:
        return 0, 0
    need = provider_selection.step_need_of(recipe, shards)
    ad = next((market[one] for one in _dealt(need, 1, market)), None)
    if ad is None:
        return 0, 0
    price_msat = ad.price_msat(need.gflop)
    deposit_msat = ad.deposit_msat(price_msat)
    parts = (deposit_msat, price_msat - deposit_msat)
    return price_msat, sum(_fee_msat(part) for part in parts if part)


def _dealt(need: Need, shards: int, market: Mapping[str, Trainer]) -> Counter[str]:
    """How many shards each would get, if all are free: as many turns as it takes; none where nobody fits."""
    dealt: Counter[str] = Counter()
    while (left := shards - dealt.total()) > 0:
        turn = provider_selection.deal(
            dict.fromkeys(range(left), need),
            market,
            busy=Counter(),
            before={},
            record=Record(),
        )
        if not turn:
            break
        dealt.update(turn.values())
    return dealt


def _offer(public: str, ad: Trainer, need: Need, shards: int) -> Offer:
    price_msat = ad.price_msat(need.gflop)
    return Offer(
        public=public,
        name=ad.name,
        price_msat=price_msat,
        deposit_msat=ad.deposit_msat(price_msat),
        gflops=ad.gflops,
        seconds=need.gflop / ad.gflops,
        shards=shards,
        refusal=provider_selection.why_not(ad, need),
    )


def _frozen_bytes(recipe: Recipe) -> int:
    """Of what an adapter stands beside, sealed; 0 without one."""
    if recipe.adapter is None:
        return 0
    return sealed_bytes(
        4 * (recipe.parameters() - recipe.trained()) + _HEADER_BYTES * (len(recipe.family.shapes()) + 1)
    )


def _audited(recipe: Recipe) -> int:
    """Snapshots that an audit of one result has shown, at most, if nothing speaks against it.

    What was carried into the round counts as one.
    """
    fraction, carries = float(recipe.audit.fraction), recipe.compression.carries
    segments = -(-recipe.steps // recipe.audit.segment)
    drawn = min(segments, max(1, int(segments * fraction)) + carries)
    return 2 * drawn + carries if fraction else 0
