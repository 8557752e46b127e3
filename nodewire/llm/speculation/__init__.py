"""Speculation in flight: guessed tokens travel around the ring before it is known whether they are right.

Sampling draws from (seed, position), so a guess is right if it is the very token that decoding one by one would have
chosen: output is token-identical to plain decoding at every temperature, whatever is guessed. Nothing here knows
torch but `draft_model` and `draft_proposer`; times and rows are told from outside.
"""
