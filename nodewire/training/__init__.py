"""Training: its documents, engine, customer, provider, verification, and FEDSTR's layout."""
