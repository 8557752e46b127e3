"""Debts and dues of chunks, in a ledger, and who pays and collects them."""
