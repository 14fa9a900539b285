"""Packages and scripts of Chainer's years, tried on today's Python.

    python -m benchmarks.old_packages

Each package is installed into an environment of its own, beside this project, and a
program uses it: trains some steps, or reads data. Where it fails, it is tried
again with the older names that `chainer_compat` brings back, and then with an older
NumPy. The table says what worked, and the last line of what did not.
"""
