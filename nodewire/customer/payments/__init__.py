"""Payments of a job: claims, debts, receipts, refunds, the verification share."""
