"""Payment: one interface to wallets, invoices, zaps, and the ledger; `simnet` is a Lightning network to develop on."""
