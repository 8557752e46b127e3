"""The simulated Lightning network: a wallet service in its own process, for development, tests and the demo.

Nodes have real keys, invoices are real BOLT 11 of regtest; only channels and their routes are missing. State is a pure
machine (`network`) over a log in SQLite (`journal`), asked through `service`, served by `http`.
"""
