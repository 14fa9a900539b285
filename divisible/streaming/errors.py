"""Errors of operands that are elsewhere than in memory."""


class StoreError(RuntimeError):
    """Operands cannot be kept where they were to be kept."""
