"""Examples to copy, one folder each; every script runs on its own."""
