"""What replicas of a model exchange: gradients, in as few bits as do no harm.

::

    simulation     what an exchange leaves on the replicas, in one process
    settings       the arguments of an exchange, checked
    nodes          which replicas share a node, and the slices that each adds up
    two_roundings  encode, send, add up in float32, encode, send: the default
    oyama2017      Algorithm 1 of the paper: a rounding after each addition

Names are imported when they are first used.
"""

from chainer_compat._packages import check

check(__name__)

from divisible.lazy_names import lazy_names  # noqa: E402

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "data_parallel.simulation": ["ExchangeResult", "simulate_exchange"],
    },
)
