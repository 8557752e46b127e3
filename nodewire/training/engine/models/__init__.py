"""Models that a training starts from and ends with, as folders."""
