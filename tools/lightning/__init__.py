"""Three real Lightning nodes on this machine: bitcoind on regtest, an Electrum server, Electrum's A, B and C.

A has a channel with B, and B one with C, so what A pays to C is forwarded. All listens on loopback alone.
"""
