"""As much of Bitcoin as a bond on the chain needs: Taproot outputs, transactions, and a node's RPC."""
