"""The worker processes of ``MultiprocessIterator``.

``multiprocessing.Pool`` replaces a worker that ends by a new one, and reports no error.
The unfinished task of the old worker is lost, and the iterator waits for it for ever.
This happens when the system kills a worker for lack of memory. With the start methods
``'spawn'`` and ``'forkserver'``, each worker imports the script again, and it also
happens when the script ends the worker.
"""

import multiprocessing
import threading
import weakref
from typing import Any

# The workers that were alive at the last check, by pool.
_known: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_failed: weakref.WeakSet = weakref.WeakSet()
# Seconds that the end of a pool may take.
_SECONDS_TO_END = 2


def watch(pool: Any) -> None:
    """Records the workers of a new pool."""
    _known[pool] = set(pool._pool)


def have_failed(loop: Any) -> bool:
    """Checks the workers; the iterator's thread calls this while it waits.

    Args:
        loop: The ``_PrefetchLoop`` of an iterator.

    Returns:
        bool: ``False``.

    Raises:
        RuntimeError: If a worker has ended that should not have.
    """
    pool = loop._pool
    # A list of the pool's own, which another thread changes.
    workers = _known[pool] | set(pool._pool)
    # Workers that have done their share end, and are replaced.
    good = (None, 0) if loop.maxtasksperchild else (None,)
    failed = [each for each in workers if each.exitcode not in good]
    if failed:
        _failed.add(pool)
        _end(pool)
        raise RuntimeError(_say(failed[0].exitcode)) from None
    _known[pool] = {each for each in workers if each.exitcode is None}
    return False


def join(pool: Any) -> None:
    """Waits until a closed pool has ended, unless its workers have failed."""
    if pool not in _failed:
        pool.join()


def _end(pool: Any) -> None:
    # A worker that was killed may have had a lock, for which this would wait for ever.
    ending = threading.Thread(target=pool.terminate, daemon=True)
    ending.start()
    ending.join(_SECONDS_TO_END)
    for worker in list(pool._pool):
        worker.kill()


def _say(exit_code: int) -> str:
    what = "was killed by signal" if exit_code < 0 else "ended with exit code"
    text = f"a worker of MultiprocessIterator {what} {abs(exit_code)}"
    method = multiprocessing.get_start_method()
    if method == "fork":
        return f"{text}: perhaps there is not enough memory for n_processes of them"
    return (
        f"{text}. The start method {method!r} lets each worker import the script again,"
        f" and if that imports mpi4py.MPI under a launcher, MPI ends the worker. Call"
        f" multiprocessing.set_start_method('fork') at the start of the script; or use"
        f" MultithreadIterator; or import mpi4py, and all that imports it, below"
        f" if __name__ == '__main__'"
    )
