"""Wallets of real money, each behind an API that its service documents."""
