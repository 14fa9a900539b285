"""Compares one-sided messages with others; see `__main__`."""
