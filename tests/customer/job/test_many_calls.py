"""A customer that buys all day remembers of its purchases only the newest."""

from __future__ import annotations

from types import SimpleNamespace

from nodewire import Customer
from nodewire.customer.job.purchased_job import MAX_REPAIRS
from nodewire.customer.job.retry_policy import MAX_AGAIN
from nodewire.customer.migration.migrator import MAX_MOVES


def test_a_customer_keeps_as_many_purchases_as_one_call_may_begin():
    customer = Customer(SimpleNamespace(max_chunk_msat=1, max_total_msat=1, lookahead=1))
    customer.purchases.extend(range(1_000))
    most = (MAX_AGAIN + 1 + MAX_MOVES) * (MAX_REPAIRS + 1)
    assert list(customer.purchases) == list(range(1_000 - most, 1_000))
