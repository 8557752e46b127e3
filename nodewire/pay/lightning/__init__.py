"""Wallets, invoices and LNURL."""
