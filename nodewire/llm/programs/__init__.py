"""Programs of a decoder's tasks, where it is cut, and how much memory a task takes."""
