"""Samples and complaints: what an oracle computes again, judges and votes on."""
