"""Arguments, functions and classes of Chainer 1, for scripts that were written for it.

::

    F.dropout(x, train=False)       using_config('train', False): F.dropout(x)
    bn(x, test=True)                using_config('train', False): bn(x)
    Variable(x, volatile='on')      functions of it run with enable_backprop False
    Variable(x, 'on')               as volatile='on'
    L.Linear(3, 2, wscale=2)        initialW=LeCunNormal(sqrt(2))
    L.Linear(3, 2, 2)               as wscale=2
    F.relu(x, use_cudnn=False)      F.relu(x)
    F.softmax(x, False)             as use_cudnn=False
    F.Linear(3, 2)                  L.Linear(3, 2)
    F.MaxPooling2D(2)(x)            F.max_pooling_2d(x, 2)
    class Mine(Pooling2D): ...      a chainer.Function with Mine's forward and backward
    Mine(2)(x)
    chainer.FunctionSet(a=...)      a Chain
    optimizer.zero_grads()          target.cleargrads()
    StandardUpdater, Evaluator      as_variable(x) of each array of a minibatch
    snapshot(trigger=...)           trainer.extend(snapshot(), trigger=...)

Chainer's modules are changed in memory while they are loaded. One warning is given for
each kind of change, at its first use.
"""

import functools
import inspect
import numbers
import sys
from contextlib import ExitStack

import chainer_compat
from chainer_compat._warned import tell

# Arguments that Chainer 1 had, of functions and of calls of links.
_MODES = {"train", "test"}
_IGNORED = {"use_cudnn", "deterministic"}
#: Arguments by position, where Chainer has fewer since.
_POSITIONAL = {
    name: tuple(places.split())
    for name, places in {
        "BatchNormalization": "x test finetune",
        "NStepBiLSTM": "hx cx xs train",
        "NStepLSTM": "hx cx xs train",
        "StatefulZoneoutLSTM": "x train",
        "average_pooling_2d": "x ksize stride pad use_cudnn",
        "average_pooling_nd": "x ksize stride pad use_cudnn",
        "convolution_2d": "x W b stride pad use_cudnn cover_all deterministic",
        "convolution_nd": "x W b stride pad use_cudnn cover_all",
        "deconvolution_2d": "x W b stride pad outsize use_cudnn deterministic",
        "deconvolution_nd": "x W b stride pad outsize use_cudnn",
        "dilated_convolution_2d": "x W b stride pad dilate use_cudnn cover_all",
        "dropout": "x ratio train",
        "log_softmax": "x use_cudnn",
        "max_pooling_2d": "x ksize stride pad cover_all use_cudnn",
        "max_pooling_nd": "x ksize stride pad cover_all use_cudnn",
        "relu": "x use_cudnn",
        "sigmoid": "x use_cudnn",
        "sigmoid_cross_entropy": "x t use_cudnn normalize",
        "softmax": "x use_cudnn",
        "softmax_cross_entropy": "x t use_cudnn normalize cache_score class_weight"
        " ignore_label reduce",
        "tanh": "x use_cudnn",
        "zoneout": "h x ratio train",
    }.items()
}
#: Functions that copies of Chainer's links call by the module of the function. In other
#: such modules Chainer's own calls give today's arguments by position.
_CALLED_BY_MODULE = {"convolution_2d", "deconvolution_2d", "dilated_convolution_2d"}


def enable() -> None:
    """Changes Chainer's modules when they are loaded.

    Raises:
        RuntimeError: If Chainer was imported before.
    """
    name = "chainer_compat._chainer1"
    if name in chainer_compat._Hook.plugged_in:
        return
    if "chainer" in sys.modules:
        raise RuntimeError(
            "chainer_compat: the mode chainer1 changes Chainer while it is imported,"
            " and Chainer was imported before: set CHAINER_COMPAT=chainer1 in the"
            " environment, or start the script by python -m chainer_compat run"
            " --compat chainer1 SCRIPT"
        )
    chainer_compat.plug_in(name)


def loaded(module) -> None:
    """Changes a module of Chainer that was loaded."""
    change = _CHANGES.get(module.__name__)
    if change is not None:
        change(module)


def _tolerant(function, name):
    """Returns a function that also accepts the arguments of Chainer 1."""
    accepted = _named(function)
    modes, ignored = _MODES - accepted, _IGNORED - accepted
    places = _POSITIONAL.get(name, ())
    old = [i for i, p in enumerate(places) if p in modes | ignored]
    n_plain = old[0] if old else len(places)
    is_method = "self" in inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args, **kwargs):
        # A method has its object before the arguments.
        first = len(args) - 1 if is_method else len(args)
        start = len(args) - (first - n_plain)
        if n_plain < first <= len(places) and _is_old(places[n_plain], args[start]):
            kwargs.update(zip(places[n_plain:], args[start:]))
            args = args[:start]
        if kwargs.keys().isdisjoint(modes | ignored):
            return function(*args, **kwargs)
        with ExitStack() as stack:
            _enter_modes(stack, name, kwargs, modes)
            _drop(kwargs, ignored)
            return function(*args, **kwargs)

    # inspect.getargspec does not look behind a wrapper.
    named = [p for p in places if p not in _IGNORED]
    call.__signature__ = _with_names(inspect.signature(function), named)
    return call


def _is_old(name, value):
    """Returns whether a value stands where Chainer 1 had an argument of this name."""
    # NumPy's class is named bool_ or bool.
    return name not in _IGNORED or type(value).__name__ in ("bool", "bool_")


def _with_names(signature, places):
    """Returns a signature that has these names, too, before further arguments."""
    parameters = list(signature.parameters.values())
    n_named = len([p for p in parameters if p.kind != p.VAR_KEYWORD])
    missing = [
        inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=name == "train"
        )
        for name in places
        if name not in signature.parameters
    ]
    parameters[n_named:n_named] = missing
    return signature.replace(parameters=parameters)


def _named(function):
    """Returns the names of the arguments that a function has itself."""
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind not in kinds}


def _enter_modes(stack, name, kwargs, modes) -> None:
    import chainer

    for key in modes & kwargs.keys():
        value = kwargs.pop(key)
        train = bool(value) if key == "train" else not value
        stack.enter_context(chainer.using_config("train", train))
        tell(
            key,
            f"{name} is called with {key}={value!r}: chainer_compat calls it within"
            f" chainer.using_config('train', {train}), as the script may do itself",
        )


def _drop(kwargs, ignored) -> None:
    for key in ignored & kwargs.keys():
        value = kwargs.pop(key)
        tell(
            key,
            f"{key}={value!r} is left out: leave it out in the script, too, or call"
            f" chainer.using_config({_CONFIG[key]!r}, ...)",
        )


_CONFIG = {"use_cudnn": "use_cudnn", "deterministic": "cudnn_deterministic"}


def _change_functions(functions) -> None:
    from chainer_compat import _chainer1_names

    for name, value in list(vars(functions).items()):
        if inspect.isfunction(value) and value.__module__.startswith("chainer."):
            tolerant = _tolerant(value, name)
            setattr(functions, name, tolerant)
            if name in _CALLED_BY_MODULE:
                setattr(sys.modules[value.__module__], name, tolerant)
    functions.__getattr__ = _chainer1_names.function_class


def _change_links(links) -> None:
    # Chainer itself is still being imported.
    from chainer.link import Link

    for cls in list(vars(links).values()):
        if not (isinstance(cls, type) and issubclass(cls, Link)):
            continue
        # Some have both from a base class that has no public name, as NStepLSTM.
        cls.__init__ = _with_old_sizes(cls.__init__)
        if hasattr(cls, "forward"):
            cls.forward = _tolerant(cls.forward, cls.__name__)


def _with_old_sizes(init):
    """Returns an ``__init__`` of a link that also accepts ``wscale`` and ``bias``."""
    accepted = _named(init)
    ignored = _IGNORED - accepted
    names = {"wscale", "bias"} - accepted
    # Both links that Chainer made of convolutions take further arguments by name.
    weights = "conv_init" if "mlp" in init.__module__ else "initialW"

    order = list(inspect.signature(init).parameters)[1:]
    n_before = order.index("nobias") if "nobias" in order else len(order)

    @functools.wraps(init)
    def call(self, *args, **kwargs):
        is_old = len(args) > n_before and isinstance(args[n_before], numbers.Real)
        if is_old and not isinstance(args[n_before], bool):
            # Chainer 1 had both in the place where nobias is today.
            kwargs.update(zip(["wscale", "bias", *order[n_before:]], args[n_before:]))
            args = args[:n_before]
        if not kwargs.keys().isdisjoint(names | ignored):
            _drop(kwargs, ignored)
            if "bias" in names & kwargs.keys():
                value = kwargs.pop("bias")
                if kwargs.get("initial_bias") is None:
                    kwargs["initial_bias"] = value
                tell("bias", "bias= is the initial value: initial_bias= in the script")
            if "wscale" in names & kwargs.keys():
                scale = kwargs.pop("wscale")
                given = kwargs.get(weights)
                kwargs[weights] = _scaled(given, scale**0.5)
                tell(
                    "wscale",
                    f"wscale={scale:g} is a factor of the initial weights, as in"
                    f" {weights}=chainer.initializers.LeCunNormal({scale:g} ** 0.5)",
                )
        init(self, *args, **kwargs)

    return call


def _scaled(initializer, factor):
    """Returns an initializer whose weights are multiplied by a factor."""
    import numpy
    from chainer import initializers

    if initializer is None:
        return initializers.LeCunNormal(factor)
    if factor == 1:
        return initializer
    if isinstance(initializer, numpy.ndarray) or numpy.isscalar(initializer):
        return initializer * factor

    def scaled(array):
        initializer(array)
        array *= factor

    return scaled


def _change_initializers(initializers) -> None:
    # Links of scripts call it, as Chainer's own do.
    original = initializers._get_initializer

    @functools.wraps(original)
    def get_initializer(initializer, scale=1.0):
        if scale != 1:
            initializer = _scaled(initializer, scale)
        return original(initializer)

    initializers._get_initializer = get_initializer


def _change_variable(variable) -> None:
    cls = variable.Variable
    init = cls.__init__

    @functools.wraps(init)
    def call(self, data=None, *args, **kwargs):
        kwargs.update(zip(("volatile", "name", "grad"), args))
        volatile = kwargs.pop("volatile", None)
        init(self, data, **kwargs)
        if volatile is not None:
            _is_on = str(volatile).lower() in ("on", "true")
            self._is_volatile = _is_on
            tell(
                "volatile",
                f"volatile={volatile!r}: functions of such a variable run within"
                f" chainer.using_config('enable_backprop', {not _is_on}), as"
                f" chainer.no_backprop_mode() does in the script",
            )

    cls.__init__ = call
    cls._is_volatile = False
    cls.volatile = property(lambda self: "on" if self._is_volatile else "off")


def _change_function_node(function_node) -> None:
    cls = function_node.FunctionNode
    apply = cls.apply

    @functools.wraps(apply)
    def call(self, inputs):
        if not any(getattr(x, "_is_volatile", False) for x in inputs):
            return apply(self, inputs)
        import chainer

        with chainer.using_config("enable_backprop", False):
            outputs = apply(self, inputs)
        for y in outputs:
            y._is_volatile = True
        return outputs

    cls.apply = call
    cls.__call__ = _call_node
    check = cls._check_data_type_forward

    @functools.wraps(check)
    def checked(self, in_data):
        try:
            check(self, in_data)
        except AttributeError as error:
            # Sizes are numbers in Chainer's first check, and expressions in its second.
            if "'eval'" not in str(error):
                raise
            from chainer.utils import type_check

            in_types = type_check.get_types(in_data, "in_types", False)
            with type_check.get_function_check_context(self):
                self.check_type_forward(in_types)

    cls._check_data_type_forward = checked


def _call_node(self, *inputs):
    """Calls a function of Chainer, as scripts do whose class has one as its base."""
    from chainer_compat import _chainer1_functions

    return _chainer1_functions.call(self, inputs)


def _change_optimizer(optimizer) -> None:
    from chainer_compat import _chainer1_names

    for function in _chainer1_names.OPTIMIZER_METHODS:
        if not hasattr(optimizer.Optimizer, function.__name__):
            setattr(optimizer.Optimizer, function.__name__, function)


def _in_training(name):
    """Returns a change that is a function of another module, imported when needed."""

    def change(module) -> None:
        from chainer_compat import _chainer1_training

        getattr(_chainer1_training, name)(module)

    return change


def _change_link(link) -> None:
    from chainer_compat import _chainer1_links

    _chainer1_links.change(link)


def _change_root(chainer) -> None:
    from chainer_compat import _chainer1_sets

    chainer.FunctionSet = _chainer1_sets.FunctionSet


_CHANGES = {
    "chainer": _change_root,
    "chainer.function_node": _change_function_node,
    "chainer.functions": _change_functions,
    "chainer.initializers": _change_initializers,
    "chainer.link": _change_link,
    "chainer.links": _change_links,
    "chainer.optimizer": _change_optimizer,
    "chainer.training.extensions": _in_training("change_extensions"),
    "chainer.training.extensions.evaluator": _in_training("change"),
    "chainer.training.trainer": _in_training("change_trainer"),
    "chainer.training.updaters.parallel_updater": _in_training("change_parallel"),
    "chainer.training.updaters.standard_updater": _in_training("change"),
    "chainer.variable": _change_variable,
}
