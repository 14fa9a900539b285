"""ChainerMN's replicas become stages of one model."""

import pytest

from tests.support.ported import added, obstacles, removed, training_script

COMM = "comm = chainermn.create_communicator('naive')\n"


def test_wrappers_give_way_to_what_they_wrap():
    before = (
        COMM + "train = chainermn.scatter_dataset(train, comm, shuffle=True)\n"
        "train_iter = chainermn.iterators.create_multi_node_iterator(\n"
        "    it(train), comm)"
    )
    source = training_script(before=before).replace(
        "chainer.optimizers.Adam()",
        "chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(), comm)",
    )
    lines = added(source)
    assert "optimizer = chainer.optimizers.Adam()" in lines
    assert "train_iter = it(train)" in lines
    assert not any("COMM_WORLD" in line for line in lines)
    assert any("scatter_dataset" in line for line in removed(source))


def test_all_ranks_load_the_data():
    before = (
        COMM + "if comm.rank == 0:\n    # all of it\n    train = load(\n        'a')\n"
        "else:\n    train = None"
    )
    assert "train = load(" in added(training_script(before=before))
    assert "else:" in removed(training_script(before=before))


def test_all_ranks_have_the_extensions_and_rank_0_prints():
    after = "if comm.rank == 0:\n    trainer.extend(extensions.LogReport())"
    source = training_script(
        before=COMM + "if comm.rank == 0:\n    print(1)", after=after
    )
    assert "if comm.rank == 0:" not in added(source)
    assert removed(source).count("if comm.rank == 0:") == 1
    assert "trainer.extend(extensions.LogReport())" in added(source)
    source = source.replace("0:\n    trainer", "0: trainer")
    assert "trainer.extend(extensions.LogReport())" in added(source)


def test_all_ranks_compute_what_rank_0_did():
    end = "if comm.rank == 0:\n    y = model.predictor(x)\n    print(y)"
    source = training_script(before=COMM, end=end)
    assert "y = as_variable(pipe.predict(x))" in added(source)
    assert "if comm.rank == 0:" in removed(source)


def test_batch_normalization_is_chainers():
    source = training_script(
        before=COMM + "bn = chainermn.links.MultiNodeBatchNormalization(3, comm, eps=1)"
    )
    lines = added(source)
    assert "bn = BatchNormalization(3, eps=1)" in lines
    assert "from chainer.links import BatchNormalization" in lines
    assert any("n_microbatches=1" in line for line in lines)


@pytest.mark.parametrize(
    "before, words",
    [
        (COMM + "class M(chainermn.MultiNodeChainList):\n    pass\nM(comm)", None),
        (
            COMM + "h = chainermn.functions.send(h, comm, 1)",
            "divided among ranks by hand",
        ),
        (
            COMM + "if comm.rank == 0:\n    a = 1\nelse:\n    a = f()",
            "ranks do different things",
        ),
        (
            COMM + "if a:\n    b()\nelif comm.rank == 0:\n    c.extend(d)",
            "ranks do different things",
        ),
    ],
)
def test_models_and_data_of_ranks_are_refused(before, words):
    if words is None:
        assert added(training_script(before=before))
        return
    ((_, text, page),) = obstacles(training_script(before=before))
    assert words in text and page == "howto/chainermn"
