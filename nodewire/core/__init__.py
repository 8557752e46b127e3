"""Small parts that every room may use: collections, tasks, time, SQLite. They know errors and nothing else."""
