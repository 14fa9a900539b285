"""An optimizer in mixed precision beside Chainer's own in float32."""

import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import optimizer_hooks as hooks
from chainer import optimizers

import mixed_precision
from divisible import Divisible
from mixed_precision import MixedPrecision, float32_loss, to_float16

N_STEPS = 4


OPTIMIZERS = [
    optimizers.AMSBound,
    optimizers.AMSGrad,
    optimizers.AdaBound,
    optimizers.AdaDelta,
    optimizers.AdaGrad,
    optimizers.Adam,
    lambda: optimizers.AdamW(weight_decay_rate=0.01),
    optimizers.CorrectedMomentumSGD,
    lambda: optimizers.MSVAG(lr=0.01),
    optimizers.MomentumSGD,
    optimizers.NesterovAG,
    optimizers.RMSprop,
    optimizers.RMSpropGraves,
    optimizers.SGD,
    optimizers.SMORMS3,
]


HOOKS = {
    "none": [],
    "decay": [hooks.WeightDecay(0.01)],
    "lasso": [hooks.Lasso(0.01)],
    "noise": [hooks.GradientNoise(0.3)],
    "lars": [hooks.GradientLARS()],
    "hard clipping": [hooks.GradientHardClipping(-0.5, 0.5)],
    "several": [hooks.Lasso(0.01), hooks.GradientLARS(), hooks.WeightDecay(0.01)],
}


#: Arguments that ``tests.support.numpy_training`` has as well.
ARGUMENTS = {
    "AdamW": {"weight_decay_rate": 0.01},
    "LARS": {"lr": 0.5, "eta": 0.01, "weight_decay": 0.01},
    "MSVAG": {"lr": 0.01},
}


def make_named_optimizer(name):
    """Makes an optimizer of Chainer or of ``mixed_precision``."""
    home = optimizers if hasattr(optimizers, name) else mixed_precision
    return getattr(home, name)(**ARGUMENTS.get(name, {}))


def make_model(dtype=np.float32):
    """Three layers of which the middle one normalizes."""
    np.random.seed(0)
    model = Divisible(
        L.Linear(5, 7), L.BatchNormalization(7), L.Linear(7, 3, nobias=True)
    )
    return to_float16(model) if dtype == np.float16 else model


def pair(make_optimizer, hooks=(), **options):
    """A float16 model in mixed precision, and its masters as a float32 model."""
    model = make_model(np.float16)
    twin = make_model()
    for path, param in model.namedparams():
        dict(twin.namedparams())[path].array[...] = param.array
    optimizer = MixedPrecision(make_optimizer(), **options).setup(model)
    reference = make_optimizer().setup(twin)
    for hook in hooks:
        optimizer.add_hook(hook)
        reference.add_hook(hook)
    return optimizer, reference


def give_gradients(optimizer, reference, step, size=1.0):
    """The same gradients, scaled and rounded, and unscaled."""
    rng = np.random.RandomState(step)
    scale = float(optimizer.loss_scale)
    twins = dict(reference.target.namedparams())
    for path, param in optimizer.target.namedparams():
        gradient = rng.normal(scale=size, size=param.shape) * scale
        param.grad = gradient.astype(param.dtype)
        param._loss_scale = scale
        twins[path].grad = param.grad.astype(np.float32) / np.float32(scale)


def update_both(optimizer, reference, step):
    np.random.seed(step)
    optimizer.update()
    np.random.seed(step)
    reference.update()


def assert_equal(optimizer, reference, rtol=0):
    masters = optimizer._masters.by_path()
    for path, twin in reference.target.namedparams():
        param = dict(optimizer.target.namedparams())[path]
        master = masters.get(path, param.array)
        np.testing.assert_allclose(master, twin.array, rtol=rtol, atol=rtol)
        np.testing.assert_array_equal(param.array, master.astype(param.dtype))


def train(model, optimizer, n_steps):
    rng = np.random.RandomState(1)
    lossfun = float32_loss(F.softmax_cross_entropy)
    for _ in range(n_steps):
        x, t = rng.normal(size=(8, 5)).astype("e"), rng.randint(0, 3, 8).astype("i")
        optimizer.update(lambda x, t: lossfun(model(x), t), x, t)
