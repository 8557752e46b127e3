"""Hugging Face directories as modules to trace, their inputs, and where their weights lie.

`transformers` builds the modules; only registration imports it, never a worker that serves a task.
"""
