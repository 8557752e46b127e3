"""What certificates hold of a job, and sampled chunks computed again, by whoever checks it. nips/18-samples.md."""
