"""A chain that computes its loss is split into its output and its loss."""

import pytest

from pipeline.porting.porting import port
from tests.support.ported import added, obstacles, training_script

NET = """
class Net(chainer.Chain):
    def __init__(self):
        super().__init__()

    def {name}(self, x, t):
        {body}
"""
OLD_STYLE = """h = F.relu(self.l1(x))  # hidden
        y = self.l2(h)
        self.loss = F.softmax_cross_entropy(y, t)
        self.accuracy = F.accuracy(y, t)
        return self.loss"""
KEPT = """y = self.l2(F.relu(self.l1(x)))
        loss = F.softmax_cross_entropy(y, t)
        accuracy = F.accuracy(y, t)
        chainer.report({'loss': loss, 'accuracy': accuracy}, self)
        return loss"""


def net(body, name="forward"):
    return training_script(model="Net()", before=NET.format(name=name, body=body))


@pytest.mark.parametrize("body", [KEPT, OLD_STYLE])
@pytest.mark.parametrize("name", ["forward", "__call__"])
def test_output_and_loss_become_two_functions(name, body):
    source = net(body, name)
    lines = added(source)
    assert (
        "pipe = Pipeline(layers, comm, n_microbatches=4, lossfun=loss_of_net,"
        " accfun=F.accuracy)"
    ) in lines
    assert (
        "layers = from_chain(model, concat_examples(train_iter.dataset[:2])[:-1],"
        " forward=model.output)"
    ) in lines
    position = lines.index("def output(self, x):")
    assert lines[position + 1 :].index("return y") < 4
    text = port(source).text
    scope = {}
    exec(
        text[text.index("def loss_of_net") : text.index("\nmodel =")], {"F": _F}, scope
    )
    assert scope["loss_of_net"](2, 3) == (2, 3)


class _F:
    """Stand-ins for Chainer's functions."""

    @staticmethod
    def softmax_cross_entropy(y, t):
        return y, t


@pytest.mark.parametrize(
    "body, words",
    [
        ("return F.mean_squared_error(x, t)", "no output before"),
        (
            "y = self.l1(x)\n        loss = self.other(y, t)\n        return loss",
            "needs self and t",
        ),
        ("y = self.l1(x)\n        print(t)", "does not end with return"),
        (
            "if x is None:\n            return 0\n        return t - x",
            "it returns before",
        ),
        ("y = self.l1(x)\n        return F.hinge(y, t)", "takes train=True"),
        (
            "y = self.l1(x)\n        n = len(x)\n        return F.hinge(y, t) / n",
            "makes no array",
        ),
        (
            "y = self.l1(x)\n        n = y.shape[1]\n        return F.hinge(y, t) / n",
            "makes no array",
        ),
    ],
)
def test_a_loss_that_cannot_be_split_is_refused(body, words):
    source = net(body)
    if "takes train" in words:
        source = source.replace("self, x, t)", "self, x, t, train=True)")
    faults = obstacles(source)
    assert [words in text for _, text, _ in faults] == [True], faults
    assert faults[0][2] == "howto/other_losses"


def loss_of(body):
    """Returns the lines of the loss that a port writes."""
    lines = added(net(body))
    return lines[lines.index("def loss_of_net(y, t):") + 1 :][:4]


def test_a_sum_begins_within_the_loss():
    assert loss_of(
        "loss = 0\n        y = self.l1(x)\n        loss += F.hinge(y, t)\n"
        "        return loss"
    )[:3] == ["loss = 0", "loss += F.hinge(y, t)", "return loss"]


def test_what_depends_on_nothing_is_made_within_the_loss():
    assert loss_of(
        "w = np.array([1, 2], 'f')\n        y = self.l1(x)\n"
        "        return F.softmax_cross_entropy(y, t, class_weight=w)"
    )[:2] == [
        "w = np.array([1, 2], 'f')",
        "return F.softmax_cross_entropy(y, t, class_weight=w)",
    ]


def test_an_attribute_is_no_variable_of_its_name():
    assert loss_of(
        "y = self.l1(x)\n        loss = F.hinge(y, t)\n"
        "        self.loss = loss.array\n        return loss"
    )[:3] == ["loss = F.hinge(y, t)", "loss_ = loss.array", "return loss"]


def test_a_call_of_a_chain_is_its_own_call_and_not_forward():
    source = net(KEPT.replace("self.l2(F.relu(self.l1(x)))", "self.forward(x, 1)"))
    helper = "    def forward(self, x, train):\n        return self.l1(x)\n\n"
    source = source.replace("forward(self, x, t)", "__call__(self, x, t)")
    source = source.replace("    def __call__", f"{helper}    def __call__")
    lines = added(source)
    assert "def loss_of_net(y, t):" in lines
    assert "def output(self, x):" in lines


def test_a_class_that_is_not_seen_is_refused():
    ((_, text, _),) = obstacles(training_script(model="nets.Net()"))
    assert "class of model is not in this script" in text


def test_values_that_are_no_longer_reported_are_named():
    body = KEPT.replace("'accuracy': accuracy", "'perp': F.exp(loss)")
    says = [each.text for each in port(net(body)).findings]
    assert any("perp is no longer reported" in text for text in says)
    says = [each.text for each in port(net(KEPT)).findings]
    assert not any("no longer reported" in text for text in says)


BESIDE = """
import chainer
import chainer.functions as F
import chainer.links as L
from chainer import report


def penalty(y):
    return F.sum(y ** 2)


class Net(chainer.Chain):
    def __init__(self, gain, verbose=False):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, 2)
            self.scale = 0.5
            self.verbose = verbose
        self.gain = gain

    def forward(self, x, t):
        y = F.relu(self.l1(x))
        loss = F.mean_squared_error(y, t) + self.scale * self.gain * penalty(y)
        if self.verbose:
            extra = F.sum(loss)
            report({'extra': extra}, self)
        report({'loss': loss}, self)
        if self.verbose:
            return loss, y
        else:
            return loss
"""
IMPORTED = "import models.net"


def beside(**changes):
    """Returns a script whose model is in a module, and the module."""
    source = training_script(
        **{"model": "models.net.Net(2)", "before": IMPORTED, **changes}
    )
    return source, {"models.net": BESIDE}


def test_a_loss_in_a_module_beside_the_script_is_written_into_the_script():
    source, modules = beside()
    lines = added(source, modules)
    # The script has its own F and chainer; report and penalty are the module's.
    assert "from models.net import penalty" in lines
    assert not any(line.startswith("from models.net import F") for line in lines)
    start = lines.index("def output_of_net(self, x):")
    assert lines[start + 1 : start + 3] == ["y = F.relu(self.l1(x))", "return y"]
    start = lines.index("def loss_of_net(self, y, t):")
    assert lines[start + 2 : start + 4] == ["if self.verbose:", "extra = F.sum(loss)"]
    assert not any("report" in line for line in lines)
    assert (
        "layers = from_chain(model, concat_examples(train_iter.dataset[:2])[:-1],"
        " forward=lambda x: output_of_net(model, x))"
    ) in lines
    assert (
        "pipe = Pipeline(layers, comm, n_microbatches=4,"
        " lossfun=lambda y, t: loss_of_net(model, y, t), accfun=None)"
    ) in lines


@pytest.mark.parametrize(
    "change, words",
    [
        (("penalty(y)\n        if", "other(y)\n        if"), "reads other, which that"),
        (("penalty", "np"), "reads np, which is another one"),
        (("self.gain * penalty", "self.l1(y) * penalty"), "needs self and t"),
        (("F.relu(self.l1(x))", "self.__l1(x)"), "works in its class only"),
        (("def forward(self, x, t)", "def forward(self, *t)"), "with x and t"),
    ],
)
def test_a_loss_beside_the_script_that_cannot_be_written_there_is_refused(
    change, words
):
    source, modules = beside()
    modules = {name: text.replace(*change) for name, text in modules.items()}
    assert modules["models.net"] != BESIDE
    line = next(
        n for n, text in enumerate(source.splitlines(), 1) if "model = " in text
    )
    assert [
        (where, words in text) for where, text, _ in obstacles(source, modules)
    ] == [(line, True)]


@pytest.mark.parametrize(
    "reported, found",
    [
        ("accuracy(y, t)", "accfun=accuracy)"),
        ("self.accfun(y, t)", "accfun=None)"),
    ],
)
def test_the_accuracy_of_a_module_is_imported(reported, found):
    text = BESIDE.replace("'loss': loss", f"'loss': loss, 'accuracy': {reported}")
    text = f"from other import accuracy\n{text}"
    source, _ = beside()
    lines = added(source, {"models.net": text})
    assert any(line.endswith(found) for line in lines)
    is_imported = "from models.net import accuracy, penalty" in lines
    assert is_imported == (found == "accfun=accuracy)")


def test_a_model_of_one_of_several_classes_is_refused():
    source, modules = beside(before=f"{IMPORTED}\nclass A(chainer.Chain):\n    pass")
    source = source.replace(
        "model = models", "if wide:\n    model = A()\nelse:\n    model = models"
    )
    ((_, text, _),) = obstacles(source, modules)
    assert "one of several classes" in text


def test_a_variable_that_only_some_paths_make_is_no_output():
    body = "if x is not None:\n            y = self.l2(x)\n        return f(y, t)"
    ((_, text, _),) = obstacles(net(body))
    assert "some paths do not make y" in text


WRAPPED = """
class Loss(chainer.Chain):
    def __init__(self, net):
        super().__init__()
        with self.init_scope():
            self.net = net

    def forward(self, x, t):
        y = {call}
        return F.mean_squared_error(y, t)

    def predict(self, x):
        return self.net(x)

mlp = MLP(5)
"""


@pytest.mark.parametrize(
    "call, chain, names",
    [
        ("self.net(x)", "model.net", ["layers.chain_names", ".within('/net')"]),
        ("self.predict(x)", "model", None),
    ],
)
def test_a_child_that_makes_the_output_is_divided_itself(call, chain, names):
    saves = "serializers.save_npz('a', mlp)\nserializers.save_npz('b', model)"
    source = training_script(
        model="Loss(mlp)", before=WRAPPED.format(call=call), end=saves * bool(names)
    )
    lines = added(source)
    example = "concat_examples(train_iter.dataset[:2])[:-1]"
    forward = "" if names else ", forward=model.predict"
    assert f"layers = from_chain({chain}, {example}{forward})" in lines
    assert not any(line.startswith("def output") for line in lines)
    if names:
        first, within = names
        begin = "export_npz(str('{0}') + '.snapshot', '{0}', names="
        assert f"{begin.format('a')}{first})" in lines
        assert f"{begin.format('b')}{first}{within})" in lines


def test_a_child_of_a_model_that_is_divided_is_not_saved_alone():
    before = WRAPPED.format(call="self.predict(x)")
    source = training_script(
        model="Loss(mlp)", before=before, end="serializers.save_npz('a', mlp)"
    )
    ((_, text, _),) = obstacles(source)
    assert "mlp is a part of model: save that instead" in text
