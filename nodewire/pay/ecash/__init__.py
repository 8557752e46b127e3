"""Ecash of a Cashu mint: blind signatures, proofs, their locks, and the mint's HTTP API. A mint is a custodian."""
