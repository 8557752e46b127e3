"""A swarm by a file: people who know each other, and write down who computes which layers of a model.

No relay, no committee, nothing paid.
"""
