"""ChainerMN's ``create_multi_node_optimizer``, with gradients in few bits."""

from __future__ import annotations

from typing import Any

from data_parallel.exchange import Exchange
from data_parallel.optimizer import MultiNodeOptimizer
from data_parallel.parameters import Exempt
from data_parallel.replica_agreement import ReplicaAgreement

#: Bytes of a bucket, of gradients of a stage.
BUCKET_OF_STAGE = 4 * 2**20


def create_multi_node_optimizer(
    actual_optimizer: Any,
    communicator: Any,
    double_buffering: bool = False,
    zero_fill: bool = True,
    *,
    exchange_dtype: str | None = None,
    strategy: str = "two_roundings",
    exempt: Exempt = "1d",
    pipeline: Any = None,
    check_every: int = 1000,
    overlap: bool | None = None,
    **options: Any,
) -> MultiNodeOptimizer:
    """Wraps an optimizer, so that it follows the mean gradient of all replicas.

    It stands where :func:`chainermn.create_multi_node_optimizer` stood, and gradients
    travel in as few bits as asked for. A call of all ranks.

    Args:
        actual_optimizer (chainer.Optimizer): Any of Chainer's, or a
            :class:`~mixed_precision.MixedPrecision` with the ``comm`` of all ranks.
            Gradients are exchanged as they are, scaled.
        communicator: A ChainerMN communicator or an mpi4py one, of the replicas.
        double_buffering (bool): Whether each update applies the gradients of the one
            before, whose exchange goes on during forward and backward. The first update
            changes nothing.
        zero_fill (bool): Whether zeros stand for a gradient that this rank has not and
            others have. Otherwise such a gradient is an error. What no rank has stays
            ``None``.
        exchange_dtype (str): The dtype in which gradients travel, as of
            :class:`Exchange`; ``'fp32'`` rounds nothing. By default what the plan of
            the pipeline says, as well as ``error_feedback``; without one ``'fp32'``.
        strategy (str): Likewise.
        exempt: Which parameters' gradients keep float32 on the wire: ``'1d'`` for those
            with fewer than two dimensions, as normalizations and biases have; a
            function of a parameter; ``None`` for none.
        pipeline (Pipeline): On a :class:`Grid`, whose gradients they are. It tells of
            how many samples, and gives tied parameters of several stages the same mean.
        check_every (int): After how many updates the replicas' parameters are compared.
        overlap (bool): Whether gradients are exchanged while backward goes on. With a
            pipeline that is the default, if not with ``double_buffering``: those that
            its last microbatch has completed are under way while others are computed,
            and in ``param.grad`` after the update only. Otherwise
            ``update(lossfun, ...)``, which trainers call, does so, with a copy of each;
            it gained nothing where it was measured: :doc:`/howto/data_parallel`.
        **options: Of :class:`Exchange`: ``local_size``, ``error_feedback``,
            ``timeout`` and others. With a pipeline ``bucket_bytes`` are 4 MiB, so that
            the first gradients of a stage need not wait for its last ones.

    Returns:
        MultiNodeOptimizer: To be set up as the optimizer would be.

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

    See Oyama et al. (2017), Accelerating deep learning by 8-bit gradient exchange.
    """
    if pipeline is not None:
        options.setdefault("bucket_bytes", BUCKET_OF_STAGE)
    if exchange_dtype is None:
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
