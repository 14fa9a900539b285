"""Looks for NCCL without CuPy's warning that it is not installed."""

import warnings


def find():
    """Returns the module ``cupy.cuda.nccl``; raises ImportError without NCCL."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*nccl library could not be loaded")
        from cupy.cuda import nccl
    if not hasattr(nccl, "NcclCommunicator"):
        raise ImportError("NCCL is not installed")
    return nccl
