"""Smaller models: pruning and quantization while they train.

::

    extension         the steps of a plan, taken while a trainer trains
    compressed_model  the layers that the rules of a plan change, on all ranks
    pruning           steps of pruning, on the layers of a rank
    quantizing        steps of quantization, on the layers of a rank
    trials            trials of how much of each layer can go
    sensitivity_table the table of the trials, and the plan that follows
    choosing          the choice of a trial for each layer
    budgets           the change of a metric that a compression may cost
    rounds            how far each round of a compression by trying goes
    rank_layers       the layers with weights, of which a rank may have some
    distillation      the loss of a model that also learns from a teacher
    pictures          pictures of the table, and of a compression
    applying          smaller models, without what was pruned
    plan              the rules together: checked, saved, shown
    rules             layers, method and degree of each rule
    steps             steps that rules have taken or taken back
    progress          the course of a rule: begin, end, steps
    selection         the layers that a rule names
    channels          parameters that belong to a channel, and its reader
    shrinking         the removal of channels from parameters and states
    layer_lines       descriptions of lists of layers, for all ranks
    masks             pruned elements, and the hook that keeps them zero
    skipping          layers that skip pruned blocks, on all ranks
    block_links       links that skip pruned blocks
    codebooks         weights of few values, and the hook that keeps them few
    hooks             hooks of optimizers with a state for each parameter
    quantized_links   links that compute with few bits
    stored_links      links whose parameters are stored in few bits
    whole_layers      stored layers that compute in whole numbers
    fake_quantization rounding with straight-through gradients
    extents           ranges of activations, for their rounding
    affine            whole numbers, a scale, and the number for zero
    scores            scores of groups of weights

Names are imported when they are first used.
"""

from chainer_compat._packages import check

check(__name__)

from divisible.lazy_names import lazy_names  # noqa: E402

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "model_compression.applying": ["apply", "load_applied"],
        "model_compression.block_links": ["block_report"],
        "model_compression.distillation": ["Distillation"],
        "model_compression.pictures": ["plot_progress"],
        "model_compression.whole_layers": ["int8_report"],
        "model_compression.sensitivity_table": ["Sensitivity"],
        "model_compression.trials": ["sensitivity"],
        "model_compression.extension": ["Compress"],
        "model_compression.plan": ["CompressionPlan"],
        "model_compression.rules": ["Prune", "Quantize"],
    },
)
