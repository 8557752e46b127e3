"""An oracle as Prometheus sees it: epochs, votes, certificates, samples and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from nodewire.metrics.family import counter, gauge, histogram, tallied
from nodewire.protocol.verification.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from nodewire.oracle.clock_watch import ClockWatch
    from nodewire.oracle.court.court import Court
    from nodewire.oracle.daemon import Oracle

EPOCH = gauge("nodewire_oracle_epoch", "The epoch that is open, by this machine's clock.")
CERTIFIED_EPOCH = gauge("nodewire_oracle_certified_epoch", "The newest epoch that is certified.")
EPOCHS = counter("nodewire_oracle_epochs_total", "Rounds that are over, certified in time or skipped.", "outcome")
CERTIFICATE = histogram("nodewire_oracle_certificate_seconds", "From an epoch's close to its certificate.")
NODES = gauge("nodewire_oracle_nodes", "Nodes that have a place: their beats have come lately.")
CROWDED_OUT = counter("nodewire_oracle_crowded_out_total", "Beats and ads that found no place, nodes that lost theirs.")
OBSERVATIONS = counter(
    "nodewire_oracle_observations_refused_total",
    "Observations in the beats of a derived snapshot that count for nothing: a stranger's, or one that nobody drew.",
)
CROWDED = counter("nodewire_oracle_crowded_epochs_total", "Certified epochs whose leaders left strangers out.")
VOTES = counter("nodewire_oracle_votes_total", "Votes of this oracle, on epochs and on verdicts.", "topic")
VERDICTS = counter("nodewire_oracle_verdicts_total", "Certified verdicts on cases that were open here.", "outcome")
CASES = gauge("nodewire_oracle_cases_open", "Samples and complaints without a certified verdict.")
CONVICTIONS = counter("nodewire_oracle_convictions_total", "Nodes that certified verdicts have convicted.")
FAULTS = counter("nodewire_oracle_faults_total", "Times that an oracle was seen to contradict itself.")
OVERLOADS = counter("nodewire_oracle_overloads_total", "Times that this machine did not keep up (`overloaded`).")
CLOCK = gauge(
    "nodewire_oracle_clock_offset_seconds", "Seconds that this machine's clock is ahead of relays' and stores'."
)
EPOCH_FAMILIES = (EPOCH, CERTIFIED_EPOCH, EPOCHS, CERTIFICATE, NODES, CROWDED_OUT, CROWDED, OBSERVATIONS, VOTES)
FAMILIES = (*EPOCH_FAMILIES, VERDICTS, CASES, CONVICTIONS, FAULTS, OVERLOADS, CLOCK)


class Committee:
    """One oracle's two halves. To be collected on the event loop."""

    def __init__(self, oracle: Oracle, court: Court, watch: ClockWatch | None = None) -> None:
        self._oracle = oracle
        self._court = court
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        state, figures, judged = self._oracle.state, self._oracle.figures, self._court.figures
        yield EPOCH.to_metric(state.epoch)
        yield CERTIFIED_EPOCH.to_metric(state.certified[-1].body.epoch if state.certified else -1)
        yield EPOCHS.by({("certified",): figures.certified, ("skipped",): figures.skipped})
        yield CERTIFICATE.spread({(): figures.certificate})
        yield NODES.to_metric(len(state.beats))
        yield CROWDED_OUT.to_metric(state.crowded_out)
        yield OBSERVATIONS.to_metric(figures.refused_observations)
        yield CROWDED.to_metric(figures.crowded)
        yield VOTES.by({("epoch",): figures.votes, ("verdict",): judged.votes})
        yield VERDICTS.by(tallied(judged.verdicts, get_args(Outcome), zeros=True))
        yield CASES.to_metric(sum(case.done is None for case in self._court.state.cases.values()))
        yield CONVICTIONS.to_metric(judged.convictions)
        yield FAULTS.to_metric(figures.faults + judged.faults)
        yield OVERLOADS.to_metric(judged.overloads)
        yield CLOCK.to_metric(self._watch.offset_s if self._watch is not None else 0.0)
