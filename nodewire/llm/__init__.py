"""Decoders: a model cut into stages of layers around a driver, and the actors that run them. Torch lives here.

`checkpoint.splitter` cuts a checkpoint into tasks, `entry.load` runs one of them in a worker, `local.reference` runs
the same model unsplit.
"""
