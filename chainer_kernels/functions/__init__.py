"""Kernels: the arithmetic of Chainer's methods on NumPy arrays, faster.

Each function here has the arguments of the method that it stands for, and leaves behind
on the node what Chainer's own would: inputs and outputs to retain, and attributes that
its ``backward`` reads. For inputs that it does not cover it returns ``NotImplemented``
before it has changed anything.
"""
