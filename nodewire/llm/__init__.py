"""Decoders: a model cut into stages of layers around a driver, and the actors that run them. Torch lives here.

`split` cuts a checkpoint into tasks, `actor.load` runs one of them in a worker, `whole` runs the same model unsplit.
"""
