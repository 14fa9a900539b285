"""The functions of ``numpy.dual``, which SciPy has as well."""

from numpy import i0  # noqa: F401
from numpy.fft import fft, fft2, fftn, ifft, ifft2, ifftn  # noqa: F401
from numpy.linalg import (  # noqa: F401
    cholesky,
    det,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    inv,
    lstsq,
    norm,
    pinv,
    solve,
    svd,
)
