"""What training's workers host: a shard of a round at its provider, a whole training's arithmetic at its customer."""
