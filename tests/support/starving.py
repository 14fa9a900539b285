"""Takes from this process what it needs to go on."""

import contextlib
import os
import resource
import threading

# Small enough to be used up in no time.
_N_FILES = 100
_BYTES_LEFT = 8 << 20
# Less than a thread reserves for its stack, and more than what a report needs.
_BYTES_FOR_NO_STACK = 4 << 20

_kept = []


def starve(of):
    """Uses up memory, files or threads; raises what follows from it.

    Args:
        of: ``'memory'``, ``'files'``, ``'threads'``, or ``'stacks'``: memory for them.

    """
    if of == "files":
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (_N_FILES, most))
        while True:
            _kept.append(os.open(os.devnull, os.O_RDONLY))
    if of == "stacks":
        _limit_memory(_BYTES_FOR_NO_STACK)
        raise RuntimeError("no thread finds room")
    if of == "memory":
        _limit_memory(_BYTES_LEFT)
        for size in (1 << 20, 1 << 14, 1 << 9, 1 << 6):
            with contextlib.suppress(MemoryError):
                while True:
                    _kept.append(bytearray(size))
        raise MemoryError("nothing is left")
    # A limit would not bind a superuser.
    for name in ("_start_new_thread", "_start_joinable_thread"):
        if hasattr(threading, name):
            setattr(threading, name, _refuse)
    threading.Thread(target=print).start()


def _limit_memory(n_bytes_left):
    with open("/proc/self/statm") as file:
        n_bytes = int(file.read().split()[0]) * resource.getpagesize()
    limit = n_bytes + n_bytes_left
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _refuse(*arguments, **options):
    raise RuntimeError("can't start new thread")
