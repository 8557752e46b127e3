"""The customer's half of the training market: rounds bought, judged and paid, one after the other."""
