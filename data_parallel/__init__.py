"""Replicas of a model, and the exchange of their gradients in few bits.

::

    multi_node        create_multi_node_optimizer: arguments, as of ChainerMN's
    optimizer         an optimizer that follows the mean gradient of replicas
    averaging         the gradients of a model, in exchanges: in which order, and when
                      replicas are compared
    early_gradients   gradients that are exchanged while a pipeline computes others
    double_buffering  gradients that are applied one update late
    single_replica    one replica alone, which exchanges nothing
    sample_count      how many samples a minibatch has, as a user sets it
    backward          of a loss, during which gradients may be exchanged
    gradient_watch    which gradients are complete while backward is under way
    parameters        of a model, as an exchange takes their gradients
    replica_agreement what replicas must have in common, and their values
    replica_state     the states of their optimizers, as checksums

    exchange          the mean of arrays over ranks: what a user makes and calls
    one_by_one        the same of arrays that come one by one
    start             its arguments, compared between the ranks
    opening           the ranks' first words in each exchange
    current           the exchange that goes on, of which there is one at a time
    under_way         one exchange, from its opening to the mean
    flow              generators that wait for messages, some at once
    units             the messages of a part of a bucket, from all gradients to the mean
    messages          their buffers and tags
    coder             their bytes, with either strategy's code
    payloads          where those are: in messages, or on a GPU and copied
    strategies        what codes are made of, and what counts in the next exchanges
    two_roundings     encode, send, add up in float32, encode, send: the default
    oyama2017         Algorithm 1 of Oyama et al.: a rounding after each addition
    quantiles         its quantiles, kept for some exchanges
    residuals         error feedback: what the encodings have lost
    kept_state        all that is kept from one exchange to the next, saved and loaded
    layout            arrays, cut into buckets, lanes, parts and chunks
    nodes             which replicas share a node, and the slices that each adds up
    arrays            the arrays of an exchange, and the device that they are on
    json_arrays       small things, as the arrays that a serializer takes
    settings          the arguments of an exchange, checked
    break_even        from how many elements on few bits are faster
    simulation        what an exchange leaves on the replicas, in one process
    grid              ranks as replicas of a pipeline
    replica_iterator  a replica's part of each minibatch

Names are imported when they are first used.
"""

from chainer_compat._packages import check

check(__name__)

from divisible.lazy_names import lazy_names  # noqa: E402

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "data_parallel.exchange": ["Exchange", "measure_break_even"],
        "data_parallel.grid": ["Grid"],
        "data_parallel.replica_iterator": ["ReplicaIterator"],
        "data_parallel.multi_node": ["create_multi_node_optimizer"],
        "data_parallel.optimizer": ["MultiNodeOptimizer"],
        "data_parallel.simulation": ["ExchangeResult", "simulate_exchange"],
    },
)
