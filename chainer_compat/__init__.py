"""Chainer 7.8.1 and ChainerMN on today's Python, NumPy, CuPy and mpi4py."""


def install():
    """Makes ``import chainer`` work; repeated calls do nothing."""
