"""An updater of a script's own becomes a converter, or is refused."""

import pytest

from tests.support.ported import added, obstacles, training_script

OWN = """
class Own(training.StandardUpdater):
    {methods}
"""
PLAIN = """def update_core(self):
        batch = self.get_iterator('main').next()
        {arrays}
        optimizer = self.get_optimizer('main')
        optimizer.target.cleargrads()
        loss = optimizer.target(x, t)
        loss.backward()
        optimizer.update()"""


def own(methods, updater="Own(train_iter, optimizer)"):
    return training_script(updater=updater, before=OWN.format(methods=methods))


@pytest.mark.parametrize(
    "arrays, updater, more",
    [
        ("x, t = self.converter(batch, self.device)", "Own(train_iter, optimizer)", ""),
        (
            "x, t = self.converter(batch, self.device)",
            "Own(train_iter, optimizer, convert, 0)",
            ", converter=convert, device=0",
        ),
        ("x, t = make(batch)", "Own(train_iter, optimizer)", ", converter=convert"),
    ],
)
def test_an_update_by_the_models_loss_is_one_of_a_pipeline(arrays, updater, more):
    lines = added(own(PLAIN.format(arrays=arrays), updater))
    assert f"updater = PipelineUpdater(train_iter, optimizer, pipe{more})" in lines
    assert ("def convert(batch, device=None):" in lines) == ("make" in arrays)
    if "make" in arrays:
        position = lines.index("def convert(batch, device=None):")
        assert lines[position + 1 : position + 3] == [
            "x, t = make(batch)",
            "return x, t",
        ]
        # The example of the inputs calls it.
        (layers,) = (n for n, line in enumerate(lines) if "from_chain(model" in line)
        assert "convert(" in lines[layers] and position < layers


@pytest.mark.parametrize(
    "methods, words",
    [
        (PLAIN.format(arrays="x, t = batch[self.n:]"), "which uses self"),
        (
            PLAIN.format(arrays="x, t = make(batch)") + "\n        self.count += 1",
            "line 20",
        ),
        (
            PLAIN.format(arrays="x, t = make(batch)").replace(
                "backward()", "backward(loss_scale=8)"
            ),
            "line 18",
        ),
        ("def update(self):\n        pass", "update"),
        (
            "def update_core(self):\n        loss = self.get_optimizer('main')."
            "target(1, 2)\n        loss.backward()",
            "no batch",
        ),
        (
            PLAIN.format(arrays="x, t = make(batch)") + "\n        optimizer.update()",
            "line 20",
        ),
        (
            "def update_core(self):\n        batch = self.get_iterator('main').next()\n"
            "        x, t = make(batch)\n"
            "        self.get_optimizer('main').update(another_loss, x, t)",
            "no loss",
        ),
    ],
)
def test_one_that_does_more_is_refused(methods, words):
    ((_, text, page),) = obstacles(own(methods))
    assert words in text and page == "howto/other_losses"
