"""Repairs of Chainer's own errors, which exist with any version of other packages."""

from chainer_compat._shim import Edit, Shim

SHIMS = (
    Shim(
        name="softmax-cross-entropy-types",
        module="chainer.functions.loss.softmax_cross_entropy",
        why="targets of a wrong shape or type end in 'An Expr instance cannot be "
        "evaluated as bool' instead of what was expected and given",
        edits=(
            Edit(
                "        if t_type.dtype.kind == 'i':\n",
                "        if type_check.eval(t_type.dtype.kind) == 'i':\n",
            ),
        ),
    ),
    Shim(
        name="minibatch-as-array",
        module="chainer.dataset.convert",
        why="concat_examples of a minibatch that is an array, as Chainer up to 5 took "
        "it, ends in 'The truth value of an array ... is ambiguous'",
        edits=(
            Edit(
                "    if not batch:\n        raise ValueError('batch is empty')\n",
                "    if not len(batch) if hasattr(batch, 'shape') else not batch:\n"
                "        raise ValueError('batch is empty')\n",
            ),
        ),
    ),
    Shim(
        name="optimizer-not-set-up",
        module="chainer.optimizer",
        why="update() of an optimizer that was not set up ends in ''NoneType' object "
        "has no attribute 'namedparams''",
        edits=(
            # Replaces an empty line, so that line numbers in tracebacks stay right.
            Edit(
                '        parameter.\n\n        """\n        if lossfun is not None:\n',
                '        parameter.\n        """\n'
                "        if self.target is None: raise RuntimeError("
                "'it has no model to update: call optimizer.setup(model) before')\n"
                "        if lossfun is not None:\n",
            ),
        ),
    ),
)
