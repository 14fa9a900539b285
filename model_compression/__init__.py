"""Smaller models: pruning and quantization while they train.

::

    extension         what takes the steps of a plan while a trainer trains
    compressed_model  what the rules of a plan change, on all ranks
    pruning           steps of pruning, on the layers of a rank
    quantizing        steps of quantization, likewise
    trials            what each layer can lose, measured
    sensitivity_table the table of that, and the plan that follows
    distillation      the loss of a model that learns from a teacher, too
    pictures          of that, and of a model that becomes smaller
    applying          smaller models, without what was pruned
    plan              rules together: checked, saved, shown
    rules             which layers, by which method, how far
    steps             those that rules have taken, and those that are taken back
    progress          when, in how many steps
    selection         the layers that a rule means
    channels          what goes with a channel that is taken away, and who reads it
    shrinking         channels that are taken away, with what is kept beside them
    layer_lines       lists of layers, as all ranks are told of them
    masks             what is pruned, and the hook that keeps it at zero
    codebooks         weights of few values, and the hook that keeps them few
    hooks             hooks of optimizers that keep something of each parameter
    quantized_links   links that compute with few bits
    stored_links      links whose parameters are stored in few bits
    whole_layers      stored layers that compute in whole numbers
    fake_quantization rounding with straight-through gradients
    extents           from where to where activations reach, for their rounding
    affine            whole numbers, a scale, and what stands for zero
    scores            which groups of weights matter least

Names are imported when they are first used.
"""

from chainer_compat._packages import check

check(__name__)

from divisible.lazy_names import lazy_names  # noqa: E402

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "model_compression.applying": ["apply", "load_applied"],
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
