"""A model of one generation's recovery and payment, small enough to search whole."""
