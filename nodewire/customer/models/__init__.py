"""Models as a customer names them, and the rules by which their tokens become text."""
