"""Training in rounds: what a provider computes, what a customer makes of it, how it is checked. Torch lives here."""
