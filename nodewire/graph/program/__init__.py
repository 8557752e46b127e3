"""A task's program: its format, its operators, its interpreter and its checks."""
