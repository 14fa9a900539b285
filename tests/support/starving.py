"""Takes from this process what it needs to go on."""

import contextlib
import os
import resource
import threading

# Small enough to be used up in no time.
_N_FILES = 100
_BYTES_LEFT = 8 << 20

_kept = []


def starve(of):
    """Uses up memory, files or threads; raises what follows from it.

    Args:
        of: ``'memory'``, ``'files'`` or ``'threads'``.

    """
    if of == "files":
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (_N_FILES, most))
        while True:
            _kept.append(os.open(os.devnull, os.O_RDONLY))
    if of == "memory":
        with open("/proc/self/statm") as file:
            n_bytes = int(file.read().split()[0]) * resource.getpagesize()
        limit = n_bytes + _BYTES_LEFT
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
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


def _refuse(*arguments, **options):
    raise RuntimeError("can't start new thread")
