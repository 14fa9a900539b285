"""Measures the gains and costs of narrow messages between stages; see `__main__`."""
