"""What certificates hold of a job, and sampled chunks computed again, by whoever checks it. NIPS.md, "Samples"."""
