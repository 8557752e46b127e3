"""Malformed frames and handshakes, for `bench.fuzz.fuzz_wire`."""
