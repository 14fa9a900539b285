"""Replicas of a model, and the exchange of their gradients in few bits.

::

    multi_node        create_multi_node_optimizer, with the arguments of ChainerMN's
    optimizer         an optimizer that follows the mean gradient of replicas
    averaging         the exchanges of a model's gradients: their order, and when
                      replicas are compared
    early_gradients   gradients that are exchanged while a pipeline computes others
    double_buffering  gradients that are applied one update late
    single_replica    one replica alone, which exchanges nothing
    sample_count      the number of samples of a minibatch, set by the user
    backward          the backward of a loss, during which gradients may be exchanged
    gradient_watch    the gradients that are complete while backward is under way
    parameters        the parameters of a model, for an exchange of their gradients
    replica_agreement comparison of replicas, and the values that they share
    replica_state     the states of their optimizers, as checksums

    exchange          the mean of arrays over ranks: the class that users make and call
    one_by_one        the same for arrays that come one after the other
    start             the arguments of an exchange, compared between the ranks
    opening           the ranks' first messages in each exchange
    current           the exchange that is under way, one at a time
    under_way         one exchange, from its opening to the mean
    flow              generators that wait for messages, several at once
    units             the messages of a part of a bucket, from all gradients to the mean
    messages          buffers and tags of messages
    coder             the bytes of messages, with either strategy's code
    payloads          the place of these bytes: in messages, or on a GPU and copied
    strategies        the makers of codes, and the state between exchanges
    two_roundings     encode, send, add up in float32, encode, send: the default
    oyama2017         Algorithm 1 of Oyama et al.: a rounding after each addition
    oyama2017_code    the coded regions of its messages
    quantiles         the quantiles of 'oyama2017', kept for some exchanges
    residuals         error feedback: the rounding errors of encodings
    kept_state        the state between exchanges, saved and loaded
    layout            arrays, cut into buckets, lanes, parts and chunks
    nodes             the replicas of each node, and the slices that each adds up
    arrays            the arrays of an exchange, and their device
    json_arrays       small values, as the arrays that a serializer needs
    settings          the arguments of an exchange, checked
    break_even        the number of elements from which on few bits are faster
    simulation        the result of an exchange on all replicas, in one process
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
