"""Errors of operands that are kept outside memory."""


class StoreError(RuntimeError):
    """Operands cannot be kept in the place chosen for them."""
