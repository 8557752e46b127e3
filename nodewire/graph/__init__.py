"""Models as typed, memory-safe tasks: trace, cut, task format, verification, interpretation."""
