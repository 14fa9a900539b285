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
    ],
)
def test_a_loss_that_cannot_be_split_is_refused(body, words):
    faults = obstacles(net(body))
    assert [words in text for _, text, _ in faults] == [True], faults
    assert faults[0][2] == "howto/other_losses"


def test_a_class_that_is_not_seen_is_refused():
    ((_, text, _),) = obstacles(training_script(model="nets.Net()"))
    assert "class of model is not in this script" in text


def test_values_that_are_no_longer_reported_are_named():
    body = KEPT.replace("'accuracy': accuracy", "'perp': F.exp(loss)")
    says = [each.text for each in port(net(body)).findings]
    assert any("perp is no longer reported" in text for text in says)
    says = [each.text for each in port(net(KEPT)).findings]
    assert not any("no longer reported" in text for text in says)
