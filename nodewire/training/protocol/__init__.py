"""Documents of training as they travel. NIPS.md, "Training"."""
