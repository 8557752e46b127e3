"""The facts of one job at this provider, which all its parts share and none changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nodewire.protocol.market.cached_price import WHOLE_PPM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.nostr.keys import Keys
    from nodewire.protocol.job.request import Request
    from nodewire.protocol.model.manifest import Manifest


@dataclass(frozen=True)
class JobContext:
    """The job, who serves it here, and on which terms. The tasks that the plan gives this provider are its part."""

    keys: Keys
    request: Request
    manifest: Manifest
    params: Mapping[str, Any] = field(default_factory=dict)
    """As its kind has checked them."""
    patience_s: int = 30
    """How long a payment that is due is waited for before the job is given up."""
    cached_ppm: int = WHOLE_PPM
    """The share of the price, in millionths, that a unit of a found prompt costs, as the ad says."""

    @property
    def me(self) -> str:
        """The provider's own public key."""
        return self.keys.public

    @cached_property
    def generates(self) -> bool:
        return self.manifest.mode == "generate"

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Those of this provider."""
        return self.request.plan.tasks_of(self.me)

    @cached_property
    def driver(self) -> str:
        """Public key of the node that drives: a provider, or the customer for itself."""
        return self.request.plan.node_of(self.manifest.driver.name)

    @cached_property
    def drives(self) -> bool:
        return self.driver == self.me

    @cached_property
    def others(self) -> tuple[str, ...]:
        """All other members of the job."""
        plan = self.request.plan
        return tuple(one for one in dict.fromkeys((*plan.providers(), plan.customer)) if one != self.me)

    @cached_property
    def inner_edges(self) -> frozenset[str]:
        """Those between tasks, of this node's tasks."""
        ends = {edge.name: {edge.source, edge.target} for edge in self.manifest.inner_edges}
        return frozenset(name for name, tasks in ends.items() if tasks & {*self.tasks})
