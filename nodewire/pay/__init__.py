"""Payment: one interface to wallets and bond holders and where they are found, invoices, zaps, and the ledger."""
