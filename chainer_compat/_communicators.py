"""Names of ChainerMN's communicators: old names, and requirements of each."""

# The names in papers, slides and ChainerMN up to version 6. Each was an algorithm for
# the mean of gradients on GPUs with NCCL, and 'pure_nccl' has replaced them.
OLD_NAMES = dict.fromkeys(
    ["nccl", "hierarchical", "two_dimensional", "single_node"], "pure_nccl"
)
_NEEDS_NCCL = ("pure_nccl", "non_cuda_aware")
_NEEDS_CUPY = ("flat", "dummy")


def current_name(name: str) -> str:
    """Returns today's name of a communicator, if it can be made here.

    Args:
        name (str): Name of a communicator in a script; an unknown name is returned
            unchanged.

    Raises:
        RuntimeError: If the communicator needs a GPU, CuPy or NCCL that is missing
            here.

    Example:
        >>> current_name("naive")
        'naive'
    """
    from chainer.backends import cuda
    from chainermn import nccl

    current = OLD_NAMES.get(name, name)
    missing = ""
    if current in (*_NEEDS_NCCL, *_NEEDS_CUPY) and not cuda.available:
        missing = "a GPU and CuPy"
    elif current in _NEEDS_NCCL and not nccl._available:
        missing = "NCCL"
    if not missing:
        return current
    today = "" if current == name else f", which is {current!r} today,"
    raise RuntimeError(
        f"the communicator {name!r}{today} needs {missing}, not available here. Write"
        f" create_communicator('naive'), which sends arrays of NumPy and CuPy over MPI;"
        f" or install CuPy with NCCL"
    )
