"""Trains a model of another's module on arrays that are made up.

    python with_model.py MODULE EXPRESSION INPUT... [--loss NAME]

MODULE is imported from the current folder, EXPRESSION makes the model with its names,
and each INPUT is a dtype and a shape: ``f4:8,3,32,32``, or with a limit ``i4<10:8``.
The loss is what the model returns, or a function of ``chainer.functions`` of it and the
last input, or the mean square of all that it returns.
"""

import argparse
import importlib
import os
import re
import sys

import chainer
import chainer.functions as F
import numpy as np

MINIBATCHES = 4


def made_up(text, random):
    """Returns an array of a dtype and shape such as ``i4<10:8``."""
    dtype, limit, shape = re.fullmatch(r"(\w+)(?:<(\d+))?:([\d,]*)", text).groups()
    sizes = tuple(int(size) for size in shape.split(",") if size)
    if dtype.startswith("i"):
        return random.randint(0, int(limit), sizes).astype(dtype)
    return random.normal(size=sizes).astype(dtype)


def variables(value):
    """Yields the variables of floats within tuples, lists and dictionaries."""
    if isinstance(value, chainer.Variable):
        if value.dtype.kind == "f" and value.requires_grad:
            yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from variables(each)
    elif isinstance(value, dict):
        yield from variables(list(value.values()))


def loss_of(model, arrays, name):
    """Returns the loss of a model on arrays."""
    if name:
        return getattr(F, name)(model(*arrays[:-1]), arrays[-1])
    found = list(variables(model(*arrays)))
    if len(found) == 1 and found[0].size == 1:
        return F.sum(found[0])
    return sum(F.mean(each * each) for each in found)


def main():
    """Trains the model until it is stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("expression")
    parser.add_argument("inputs", nargs="+")
    parser.add_argument("--loss")
    args = parser.parse_args()
    sys.path.insert(0, os.getcwd())
    module = importlib.import_module(args.module)
    model = eval(args.expression, dict(vars(module)))
    optimizer = chainer.optimizers.Adam()
    optimizer.setup(model)
    random = np.random.RandomState(0)
    batches = [[made_up(i, random) for i in args.inputs] for _ in range(MINIBATCHES)]
    for step in range(1000):
        loss = loss_of(model, batches[step % MINIBATCHES], args.loss)
        model.cleargrads()
        loss.backward()
        optimizer.update()


if __name__ == "__main__":
    main()
