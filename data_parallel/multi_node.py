"""ChainerMN's ``create_multi_node_optimizer``, with gradients in few bits."""

from __future__ import annotations

from typing import Any

from data_parallel.exchange import Exchange
from data_parallel.optimizer import MultiNodeOptimizer
from data_parallel.parameters import Exempt
from data_parallel.replica_agreement import ReplicaAgreement

#: Bytes of a bucket of a stage's gradients.
BUCKET_OF_STAGE = 4 * 2**20


def create_multi_node_optimizer(
    actual_optimizer: Any,
    communicator: Any,
    double_buffering: bool = False,
    zero_fill: bool = True,
    *,
    exchange_dtype: str | None = None,
    strategy: str = "two_roundings",
    exempt: Exempt = "auto",
    pipeline: Any = None,
    check_every: int = 1000,
    overlap: bool | None = None,
    **options: Any,
) -> MultiNodeOptimizer:
    """Wraps an optimizer, so that it follows the mean gradient of all replicas.

    This replaces :func:`chainermn.create_multi_node_optimizer`, and sends gradients in
    few bits if asked for. A call of all ranks.

    Args:
        actual_optimizer (chainer.Optimizer): Any of Chainer's optimizers, or a
            :class:`~mixed_precision.MixedPrecision` with the ``comm`` of all ranks.
            Gradients are exchanged with their loss scale.
        communicator: A ChainerMN communicator or an mpi4py one, of the replicas.
        double_buffering (bool): Whether each update applies the gradients of the one
            before, whose exchange goes on during forward and backward. The first update
            changes nothing.
        zero_fill (bool): Whether zeros stand for a gradient that only some ranks have.
            Otherwise such a gradient is an error. A gradient that no rank has stays
            ``None``.
        exchange_dtype (str): Name of the dtype in which gradients are sent; see
            :class:`Exchange`. With ``'fp32'`` nothing is rounded. By default it is the
            dtype of the pipeline's plan, with its ``error_feedback``. Without a plan it
            is ``'fp32'``.
        strategy (str): ``'two_roundings'`` or ``'oyama2017'``; see :class:`Exchange`.
            ``'oyama2017'`` alone has the settings of the paper: the first 100 updates
            are in float32, the others in ``'fp8'``, and biases are coded as well.
        exempt: Choice of parameters whose gradients are sent in float32. ``'1d'`` are
            those with fewer than two dimensions, as normalizations and biases have. A
            function of a parameter returns whether it is one; ``None`` chooses none.
            ``'auto'`` is ``None`` for ``'oyama2017'``, otherwise ``'1d'``.
        pipeline (Pipeline): Pipeline on a :class:`Grid` that computes the gradients. It
            knows their number of samples, and gives tied parameters of several stages
            the same mean.
        check_every (int): Number of updates after which the replicas' parameters are
            compared.
        overlap (bool): Whether gradients are exchanged during backward. With a pipeline
            this is the default, except with ``double_buffering``: gradients that the
            last microbatch has completed are sent while others are computed. Then
            ``param.grad`` has the means only after the update. Without a pipeline
            ``update(lossfun, ...)``, which trainers call, overlaps them, with a copy of
            each. This gained nothing where it was measured:
            :doc:`/howto/data_parallel`.
        **options: Arguments of :class:`Exchange`: ``local_size``, ``error_feedback``,
            ``timeout`` and others. With a pipeline ``bucket_bytes`` are 4 MiB, so that
            the first gradients of a stage need not wait for its last ones.

    Returns:
        MultiNodeOptimizer: The new optimizer, to be set up like the given one.

    Raises:
        DisagreementError: If the ranks' arguments differ, or those of another rank are
            wrong.
        TypeError, ValueError: If an argument is wrong.

    Example:
        >>> import chainer
        >>> import chainer.links as L
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> sgd = chainer.optimizers.MomentumSGD(0.2)
        >>> optimizer = create_multi_node_optimizer(sgd, MPI.COMM_WORLD)
        >>> model = L.Classifier(L.Linear(4, 3))
        >>> optimizer = optimizer.setup(model)
        >>> x, t = np.ones((2, 4), "f"), np.array([0, 2], "i")
        >>> optimizer.update(model, x, t)
        >>> optimizer.t
        1

    See Oyama et al. (2017), Reducing Communication in Data-Parallel Deep Learning by
    Low-Precision Floating Point.
    """
    if pipeline is not None:
        options.setdefault("bucket_bytes", BUCKET_OF_STAGE)
    is_oyama2017 = strategy == "oyama2017"
    if exempt == "auto":
        exempt = None if is_oyama2017 else "1d"
    if exchange_dtype is None and not is_oyama2017:
        plan = getattr(pipeline, "plan", None)
        exchange_dtype = getattr(plan, "exchange_dtype", None) or "fp32"
        if getattr(plan, "error_feedback", False):
            options.setdefault("error_feedback", True)
    return MultiNodeOptimizer(
        actual_optimizer,
        communicator,
        lambda: Exchange(
            communicator, exchange_dtype=exchange_dtype, strategy=strategy, **options
        ),
        double_buffering,
        zero_fill,
        exempt,
        ReplicaAgreement(check_every),
        pipeline is not None if overlap is None else overlap,
        pipeline,
    )
