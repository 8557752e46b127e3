"""The tokens of a job as its customer reads them."""
