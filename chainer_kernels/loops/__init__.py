"""Loops over contiguous arrays, compiled by Numba; see :mod:`.compiling`."""
