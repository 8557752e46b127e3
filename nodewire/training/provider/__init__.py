"""The provider's half of the training market: rounds admitted, trained in a capped worker, delivered, paid."""
