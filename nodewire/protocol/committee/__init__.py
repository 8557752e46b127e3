"""What oracles say and certify: beacons, bodies, commitments, certificates."""
