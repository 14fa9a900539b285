"""How parameters of a case are updated, in a serial script and in a pipeline."""

from __future__ import annotations

from typing import Any

from chainer import optimizer_hooks, optimizers

from mixed_precision import DynamicLossScale, MixedPrecision, StaticLossScale
from model_compression import Compress, CompressionPlan, Prune, Quantize
from tests.composition.cases import Case
from tests.composition.models import layer_of_channels, paths_below

#: Large enough that a gradient of rounding errors alone moves no weight.
_EPSILON = 1e-2
RULES = {
    "SGD": lambda: optimizers.SGD(0.1),
    "MomentumSGD": lambda: optimizers.MomentumSGD(0.05),
    "Adam": lambda: optimizers.Adam(0.01, eps=_EPSILON),
}
HOOKS = {
    "GradientClipping": lambda: optimizer_hooks.GradientClipping(0.3),
    "WeightDecay": lambda: optimizer_hooks.WeightDecay(0.01),
    "Lasso": lambda: optimizer_hooks.Lasso(0.001),
    "GradientNoise": lambda: optimizer_hooks.GradientNoise(0.001),
    "GradientHardClipping": lambda: optimizer_hooks.GradientHardClipping(-0.05, 0.05),
}


def optimizer_of(case: Case) -> Any:
    """Returns a new optimizer of Chainer, without hooks."""
    return RULES[case.update.rule]()


def mixed(case: Case, optimizer: Any, comm: Any) -> Any:
    """Wraps an optimizer in mixed precision, if the case has a loss scale."""
    if not case.update.loss_scale:
        return optimizer
    if case.update.loss_scale < 0:
        scale = DynamicLossScale(2.0**10, growth_interval=2)
    else:
        scale = StaticLossScale(case.update.loss_scale)
    return MixedPrecision(optimizer, loss_scale=scale, comm=comm, timeout=30)


def add_hooks(case: Case, optimizer: Any, noise: Any = None) -> None:
    """Adds the hooks of a case to an optimizer that is set up.

    Args:
        case: The case.
        optimizer: The optimizer.
        noise: Function of the noise, if it is another one than Chainer's.
    """
    for name in case.update.hooks:
        hook = HOOKS[name]()
        if noise is not None and name == "GradientNoise":
            hook.noise_func = noise
        optimizer.add_hook(hook)


def set_rates(case: Case, model: Any) -> None:
    """Freezes parameters, and halves the rates of some."""
    frozen = paths_below(case.model, case.model.frozen)
    slower = paths_below(case.model, case.update.rates)
    for path, param in model.namedparams():
        if frozen and path.startswith(frozen):
            param.update_rule.enabled = False
        if slower and path.startswith(slower):
            hyperparam = param.update_rule.hyperparam
            name = "alpha" if case.update.rule == "Adam" else "lr"
            setattr(hyperparam, name, getattr(hyperparam, name) / 2)


def compression_of(case: Case, optimizer: Any, pipeline: Any = None) -> Any:
    """Returns the extension that prunes or quantizes; ``None`` for none."""
    if not case.update.compression:
        return None
    given = {} if pipeline is None else {"pipeline": pipeline}
    return Compress(compression_plan(case), optimizer, **given)


def compression_plan(case: Case) -> CompressionPlan:
    """Returns the plan of what is pruned or quantized."""
    names = {"Prune": Prune, "Quantize": Quantize}
    return CompressionPlan([eval(compression_rule(case), names)])


def compression_rule(case: Case) -> str:
    """Returns the rule of what is pruned or quantized, as an expression."""
    until = "to=0.5, end=(2, 'iteration'), steps=2"
    if case.update.compression == "prune":
        return f"Prune('magnitude', layers='Linear', {until})"
    if case.update.compression == "channels":
        layers = [layer_of_channels(case.model)]
        return f"Prune('l2', layers={layers}, granularity='channel', {until})"
    return "Quantize('int8', layers='Linear', targets=('weight',))"
