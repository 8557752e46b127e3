"""What became of a provider's jobs, in counts of few names."""

import pytest

from nodewire.errors import BadTag, NodewireError, PaymentRequired
from nodewire.metrics.family import CODES
from nodewire.provider.job_counters import Figures
from nodewire.provider.metrics import Jobs


class Half:
    def __init__(self, in_flight):
        self.figures, self.in_flight = Figures(), in_flight


class Foreign(Exception):
    pass


def shown(*halves) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("nodewire_provider_"), *sample.labels.values()): sample.value
        for metric in Jobs(halves).collect()
        for sample in metric.samples
        if not sample.name.endswith("_bucket")
    }


def test_jobs_are_counted_by_kind_and_by_how_they_ended():
    one, other = Half({8843: 3}), Half({8840: 1})
    with one.figures.job(8843):
        pass
    for error in (PaymentRequired("chunk 1"), PaymentRequired("chunk 2"), Foreign()):
        with pytest.raises(type(error)), one.figures.job(8843):
            raise error
    one.figures.refused(8843, BadTag("nonce"))
    other.figures.refused(8840, BadTag("nonce"))
    one.figures.chunks += 2
    one.figures.waited(0.25)
    one.figures.waited(0.5)
    other.figures.steps += 30
    found = shown(one, other)
    assert found["jobs_total", "8843", "served", ""] == 1
    assert found["jobs_total", "8843", "failed", "payment-required"] == 2
    assert found["jobs_total", "8843", "failed", "fault"] == 1
    assert found["jobs_total", "8843", "refused", "bad-tag"] == found["jobs_total", "8840", "refused", "bad-tag"] == 1
    assert found["job_seconds_count", "8843"] == 1  # those that were served
    assert (found["jobs_in_flight", "8843"], found["jobs_in_flight", "8840"]) == (3, 1)
    assert (found["chunks_total",], found["training_steps_total",]) == (2, 30)
    assert found["payment_wait_seconds_total",] == 0.75


def test_strangers_add_no_names(monkeypatch):
    """Whatever kinds a relay sends, and whatever errors an installed kind has of its own."""
    half = Half({})

    class Own(NodewireError):
        code = "made-up"

    for kind in range(1_000):
        half.figures.refused(kind, Own("x"))
    assert "made-up" not in CODES
    assert [key for key in shown(half) if key[0] == "jobs_total"] == [("jobs_total", "other", "refused", "other")]


def test_a_job_that_is_cancelled_is_none():
    half = Half({})
    with pytest.raises(KeyboardInterrupt), half.figures.job(8843):
        raise KeyboardInterrupt
    assert not half.figures.ended
