"""Training: what a recipe says, done. One round is a pure function of theta, recipe, shard, round and index."""
