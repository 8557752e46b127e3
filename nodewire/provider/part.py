"""This provider's part of a job: the tasks that the plan gives it."""

from __future__ import annotations

from nodewire.protocol.job import Request
from nodewire.protocol.manifest import Manifest


class Part:
    def __init__(self, me: str, request: Request, manifest: Manifest) -> None:
        """`me`: this provider's public key."""
        plan = request.plan
        self.me = me
        self.request = request
        self.manifest = manifest
        self.generates = manifest.mode == "generate"
        self.tasks = plan.tasks_of(me)
        self.driver = plan.node_of(manifest.driver.name)
        """Public key of the node that drives: a provider, or the customer for itself."""
        self.drives = self.driver == me
        self.others = tuple(one for one in dict.fromkeys((*plan.providers(), plan.customer)) if one != me)
        """All other members of the job."""
        self.inner_edges = {edge.name for edge in manifest.inner_edges if {edge.source, edge.target} & {*self.tasks}}
        """Those between tasks, of this node's tasks."""
