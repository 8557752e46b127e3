"""Choices of a training's customer: whom to ask, what to pay, how long to wait. Pure but for the ads."""
