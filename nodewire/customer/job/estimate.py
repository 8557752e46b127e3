"""What a job would come to: about, and at most. Said before anything is bought."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nodewire.customer.payments.job_payments import most_chunks, most_units
from nodewire.pay.accounts.payer import Fees
from nodewire.pay.bond.settlement import share_msat
from nodewire.plan.codec import CHARS_PER_TOKEN
from nodewire.protocol.job.chunk import chunk_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.tensors.frame import Array, Frame

_FEES = Fees()


@dataclass(frozen=True, slots=True)
class Estimate:
    """Work and verification share, in msat; what routing may cost comes on top.

    `about_msat` counts a prompt as one token for `CHARS_PER_TOKEN` bytes, and every token that the answer may have.
    `most_msat` counts a token for each byte. Where a provider fails others compute the text so far again, and a move to
    a quicker ring costs, too: `budget_msat` bounds all of it, and the job ends there.
    """

    units: int
    """Chunks that `about_msat` counts, each of the prompt's among them."""
    most_units: int
    about_msat: int
    most_msat: int
    budget_msat: int
    most_fees_msat: int
    """For the payments of `most_units` chunks, each with its own."""

    def document(self) -> dict[str, Any]:
        return asdict(self)


def estimate(
    plan: Plan, manifest: Manifest, inputs: Sequence[Frame[Array]], *, max_tokens: int, budget_msat: int
) -> Estimate:
    """Of a job by this plan.

    `max_tokens`: of the answer, of a model that makes text; `budget_msat`: the customer's, with the verification share
    in it.
    """
    if manifest.mode == "generate":
        size = sum(one.nbytes for frame in inputs for one in frame.tensors)
        prompt = -(-min(-(-size // CHARS_PER_TOKEN), manifest.context or size) // manifest.chunk)
        most_prompt = most_units(manifest, inputs)
        answer = chunk_of(manifest, max(0, min(max_tokens, manifest.context or max_tokens) - 1))  # the prompt makes one
        units, most, closed = max(1, prompt) + answer, most_prompt + answer, 1 + answer
    else:
        most_prompt, units = 1, max(1, most_chunks(manifest, inputs))
        most = closed = units
    about_msat, most_msat = (plan.chunk_msat * count + share_msat(plan, count) for count in (units, most))
    each = [plan.price_msat(public) for public in plan.providers() if plan.price_msat(public)]
    each += [share_msat(plan)] if share_msat(plan) else []
    first = sum(_FEES.most(price * most_prompt) for price in each)
    fees_msat = first + (closed - 1) * sum(_FEES.most(price) for price in each)
    return Estimate(units, most, min(about_msat, budget_msat), min(most_msat, budget_msat), budget_msat, fees_msat)
