"""Every figure of the documentation, by ``python -m benchmarks.NAME``."""
