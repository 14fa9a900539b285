"""Errors in which other ranks have a part."""

from __future__ import annotations


class StallError(RuntimeError):
    """A wait for another rank took longer than the timeout, or that rank has left."""


class DisagreementError(ValueError):
    """Ranks were given different things; raised alike on every rank."""
