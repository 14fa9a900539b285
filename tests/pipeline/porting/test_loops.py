"""Loops without an updater call the pipeline for each minibatch."""

import pytest

from pipeline.porting.porting import port

HEAD = """\
import chainer
import chainer.functions as F
import chainer.links as L
from chainer.cuda import to_cpu
import numpy as np
np.random.seed(0)
net = Net()
model = {model}
optimizer = chainer.optimizers.SGD().setup(model)
for i in range(9):
"""


def loop(body, model="L.Classifier(net)"):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return HEAD.format(model=model) + lines


def body(source):
    """Returns the lines of the ported loop, and those that make the pipeline."""
    ported = port(source)
    assert ported.text is not None, ported.obstacles
    before, _, after = ported.text.partition("for i in range(9):\n")
    made = [line for line in before.splitlines() if "layers" in line]
    return [line.strip() for line in after.splitlines()], made


def test_an_update_with_the_model_is_a_step():
    lines, made = body(
        loop(
            "x = chainer.Variable(np.asarray(images[i:i + 9]))\n"
            "optimizer.update(model, x, labels[i:i + 9])\n"
            "print(float(to_cpu(model.loss.data)) * len(x.data))\n"
        )
    )
    assert lines == [
        "x = np.asarray(images[i:i + 9])",
        "result = pipe.step(x, labels[i:i + 9])",
        "optimizer.update()",
        "if comm.rank == 0:",
        "print(float(result['loss']) * len(x))",
    ]
    assert made[0] == "layers = from_chain(model.predictor, np.asarray(images[:2]))"


def test_a_loss_of_the_script_is_not_chainers_of_the_same_name():
    source = loop(
        "x = images[i:i + 9]\n"
        "y = model(x)\n"
        "loss = softmax_cross_entropy(y, labels[i:i + 9])\n"
        "model.cleargrads()\n"
        "loss.backward()\n"
        "optimizer.update()\n",
        model="Net()",
    )
    own = "def softmax_cross_entropy(y, t):\n    return 2 * F.hinge(y, t)\n"
    text = port(source.replace("net = Net()\n", own)).text
    assert "n_microbatches=4, lossfun=softmax_cross_entropy, accfun=None)" in text
    chainers = "from chainer.functions import softmax_cross_entropy\n"
    text = port(source.replace("net = Net()\n", chainers)).text
    assert "n_microbatches=4, accfun=None)" in text


def test_the_example_is_of_the_iterator_that_trains():
    lines, made = body(
        loop(
            "batch = train_iter.next()\n"
            "x, t = concat(batch)\n"
            "optimizer.update(model, x, t)\n"
            "for batch in test_iter:\n"
            "    x, t = concat(batch)\n"
            "    loss = model(x, t)\n"
        )
    )
    example = "concat(train_iter.dataset[:2])[0]"
    assert made[0] == f"layers = from_chain(model.predictor, {example})"
    assert "result = pipe.evaluate(x, t)" in lines


def test_forward_and_backward_are_a_step():
    lines, made = body(
        loop(
            "x, t = chainer.dataset.concat_examples(it.next(), 0)\n"
            "y = model(x)\n"
            "loss = F.mean_squared_error(y, t)\n"
            "model.cleargrads()\n"
            "loss.backward()\n"
            "optimizer.update()\n"
            "total += loss.array\n"
            "with chainer.using_config('train', False):\n"
            "    y = model(v)\n"
            "    error = F.mean_squared_error(y, w)\n",
            model="net",
        )
    )
    assert lines == [
        "x, t = chainer.dataset.concat_examples(it.next(), 0)",
        "result = pipe.step(x, t)",
        "loss = result['loss']",
        "optimizer.update()",
        "total += loss",
        "with chainer.using_config('train', False):",
        "result = pipe.evaluate(v, w)",
        "error = result['loss']",
    ]
    assert made == [
        "layers = from_chain(model, chainer.dataset.concat_examples("
        "it.dataset[:2], 0)[0])",
        "pipe = Pipeline(layers, comm, n_microbatches=4, lossfun=F.mean_squared_error,"
        " accfun=None)",
    ]


def test_the_output_is_that_of_the_model_before_the_loss():
    lines, _ = body(
        loop(
            "y = model(a[i:])\n"
            "loss = F.softmax_cross_entropy(y, b[i:])\n"
            "acc = F.accuracy(y, b[i:])\n"
            "loss.backward()\n"
            "optimizer.update()\n"
            "loss = float(loss.data)\n"
            "y = tested(c)\n"
            "print(F.accuracy(y, b[i:]))\n",
            model="net",
        )
    )
    assert lines[:5] == [
        "result = pipe.step(a[i:], b[i:])",
        "loss = result['loss']",
        "acc = result['accuracy']",
        "optimizer.update()",
        "loss = float(loss)",
    ]


OWN_LOSS = """\
class Own(chainer.Chain):
    def __init__(self, net):
        super().__init__(net=net)

    def __call__(self, x, t):
        y = self.net(x)
        self.loss = F.softmax_cross_entropy(y, t)
        self.accuracy = F.accuracy(y, t)
        return self.loss
"""


def test_a_model_with_a_loss_of_its_own_is_evaluated_too():
    source = loop(
        "optimizer.update(model, a[i:], b[i:])\n"
        "loss = model(c[i:], d[i:])\n"
        "total += float(loss.data) + float(model.accuracy.data)\n",
        model="Own(net)",
    )
    source = source.replace("net = Net()", f"{OWN_LOSS}net = Net()")
    lines, made = body(source)
    assert lines == [
        "result = pipe.step(a[i:], b[i:])",
        "optimizer.update()",
        "result = pipe.evaluate(c[i:], d[i:])",
        "loss = result['loss']",
        "total += float(loss) + float(result['accuracy'])",
    ]
    assert made == [
        "layers = from_chain(model.net, a[:2])",
        "pipe = Pipeline(layers, comm, n_microbatches=4, lossfun=loss_of_own,"
        " accfun=F.accuracy)",
    ]


def test_an_accuracy_behind_the_update_is_of_the_new_weights():
    lines, made = body(
        loop(
            "loss = F.mean_squared_error(model(a[i:]), b[i:])\n"
            "model.cleargrads()\n"
            "loss.backward()\n"
            "optimizer.update()\n"
            "acc = F.accuracy(model(a[i:]), b[i:])\n",
            model="net",
        )
    )
    assert lines == [
        "result = pipe.step(a[i:], b[i:])",
        "loss = result['loss']",
        "optimizer.update()",
        "acc = F.accuracy(as_variable(pipe.predict(a[i:])), b[i:])",
    ]
    assert "accfun=None" in made[1]


@pytest.mark.parametrize(
    "before, inside, x, found",
    [
        ("a = load()", "", "a", "a[:2]"),
        # Shuffled in the loop, and whole before it.
        ("a = load()", "a = a[order]", "a[i:]", "a[:2]"),
        ("a = load()", "", "a[order[i:]][0]", "a[numpy.arange(2)][0]"),
        ("a = load()", "", "a[i:][0]", "a[:2][0]"),
        ("", "a = load(i)", "a", None),
        ("a = 1", "for a in batches:\n    pass", "a", None),
    ],
)
def test_the_example_is_of_an_array_that_is_there_before_the_loop(
    before, inside, x, found
):
    source = loop(f"{inside}\noptimizer.update(model, {x}, b[i:])\n")
    source = source.replace("net = Net()", f"net = Net()\n{before}")
    if found is None:
        assert "    if pipe is None:" in port(source).text
    else:
        assert body(source)[1][0] == f"layers = from_chain(model.predictor, {found})"


LATE = """\
if pipe is None:
layers = from_chain({chain}, {x})
pipe = Pipeline(layers, comm, n_microbatches=4{more})
optimizer = pipe.setup(optimizer)
"""


@pytest.mark.parametrize(
    "text, model, x, more",
    [
        # Links without sizes draw their weights behind the order of samples.
        (
            "order = np.random.permutation(9)\n"
            "model.cleargrads()\n"
            "optimizer.update(model, a[order], b[order])",
            "L.Classifier(net)",
            "a[order]",
            "",
        ),
        # The arrays are nothing that is there before the loop.
        (
            "x, t = load(i)\ny = model(x)\nloss = F.mean_squared_error(y, t)\n"
            "loss.backward()\noptimizer.update()",
            "net",
            "x",
            ", lossfun=F.mean_squared_error, accfun=None",
        ),
    ],
)
def test_the_first_minibatch_makes_the_pipeline_if_it_has_to(text, model, x, more):
    source = loop(text, model)
    lines, made = body(source)
    assert "pipe = None" in port(source).text and made == []
    chain = "model" if model == "net" else "model.predictor"
    start = lines.index("if pipe is None:")
    late = LATE.format(chain=chain, x=x, more=more).splitlines()
    assert lines[start : start + 4] == late
    assert lines[start + 4].startswith("result = pipe.step(")


def test_a_model_that_is_evaluated_first_is_there_before_the_loop():
    source = loop(
        "order = np.random.permutation(9)\n"
        "loss = model(c[i:], d[i:])\n"
        "optimizer.update(model, a[order], b[order])\n"
    )
    assert body(source)[1][0] == "layers = from_chain(model.predictor, a[:2])"


def test_arguments_by_keyword_are_no_minibatch():
    source = loop(
        "y = model(a[i:], train=True)\n"
        "loss = F.mean_squared_error(y, b[i:])\n"
        "loss.backward()\noptimizer.update()\n",
        model="net",
    )
    assert any("no forward and backward" in o.text for o in port(source).obstacles)


@pytest.mark.parametrize(
    "text, words",
    [
        ("optimizer.update()", "no forward and backward"),
        (
            "error = F.mean_squared_error(model(v), w)\n"
            "x, t = load(i)\ny = model(x)\nloss = F.mean_squared_error(y, t)\n"
            "loss.backward()\noptimizer.update()",
            "are not seen to be parts",
        ),
        (
            "y = model(a[i:])\nloss = F.mean_squared_error(y, t)\nloss.backward()\n"
            "optimizer.update()\nprint(y.shape)",
            "no forward and backward",
        ),
        (
            "optimizer.update(model, a[i:], b[i:])\nloss = model(c, d)\nloss.unchain()",
            "no meaning",
        ),
        (
            "y = model(a[i:])\nloss = F.mean_squared_error(y, b[i:])\nloss *= 0.5\n"
            "loss.backward()\noptimizer.update()",
            "no forward and backward",
        ),
        (
            "y = model(a[i:])\nloss = F.mean_squared_error(y, b[i:])\n"
            "loss.backward(loss_scale=128.0)\noptimizer.update()",
            "no forward and backward",
        ),
        (
            "y = model(a[i:])\na = load()\nloss = F.mean_squared_error(y, b[i:])\n"
            "loss.backward()\noptimizer.update()",
            "no forward and backward",
        ),
        (
            "y = model(a[i:])\nloss = F.softmax_cross_entropy(y, t)\nt = load()\n"
            "acc = F.accuracy(y, t)\nloss.backward()\noptimizer.update()",
            "no forward and backward",
        ),
        (
            "y = model(a[i:])\nacc = F.accuracy(y, b[i:])\nprint(acc.array)\n"
            "loss = F.softmax_cross_entropy(y, b[i:])\nloss.backward()\n"
            "optimizer.update()",
            "no forward and backward",
        ),
        (
            "y = model(a[i:])\ny = F.tanh(y)\nloss = F.mean_squared_error(y, b[i:])\n"
            "loss.backward()\noptimizer.update()",
            "no forward and backward",
        ),
        (
            "y = model(a[i:])\nloss = F.mean_squared_error(y, b[i:])\n"
            "loss.backward()\nif i % 2:\n    optimizer.update()",
            "adds up gradients",
        ),
        (
            "l1 = F.mean_squared_error(model(a[i:]), b[i:])\nl1.backward()\n"
            "l2 = F.mean_squared_error(model(c[i:]), d[i:])\nl2.backward()\n"
            "optimizer.update()",
            "adds up gradients",
        ),
    ],
)
def test_other_loops_are_refused(text, words):
    model = "L.Classifier(net)" if "model, a" in text else "net"
    ported = port(loop(text, model))
    assert any(words in each.text for each in ported.obstacles), ported
