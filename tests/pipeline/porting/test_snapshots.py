"""Snapshots and files are those of all ranks."""

import pytest

from tests.support.ported import added, obstacles, removed, training_script


@pytest.mark.parametrize(
    "line, found",
    [
        ("trainer.extend(extensions.snapshot())", ["trainer.extend(snapshot())"]),
        (
            "trainer.extend(extensions.snapshot(filename='a', n_retains=2), trigger=t)",
            ["trainer.extend(snapshot(filename='a', n_retains=2), trigger=t)"],
        ),
        (
            "trainer.extend(extensions.snapshot(autoload=args.a))",
            ["trainer.extend(snapshot(resume='auto' if args.a else None))"],
        ),
        (
            "trainer.extend(extensions.snapshot(autoload=True))",
            ["trainer.extend(snapshot(resume='auto'))"],
        ),
        (
            "serializers.load_npz(args.resume, trainer)",
            [
                "load_snapshot(args.resume, pipe, optimizer,"
                " state={'trainer': trainer})",
            ],
        ),
        (
            "serializers.save_npz('a', model)",
            [
                "save_snapshot(str('a') + '.snapshot', pipe, optimizer)",
                "if comm.rank == 0:",
                "export_npz(str('a') + '.snapshot', 'a',"
                " names=layers.chain_names.within('/predictor'))",
            ],
        ),
        (
            "serializers.save_npz('a', optimizer)",
            ["save_snapshot(str('a') + '.snapshot', pipe, optimizer)"],
        ),
    ],
)
def test_files_are_those_of_all_ranks(line, found):
    lines = added(training_script(after=line))
    assert [each for each in found if each not in lines] == []


def test_a_predictor_with_a_name_of_its_own_is_saved_by_its_names():
    source = training_script(before="net = MLP()", end="serializers.save_npz('a', net)")
    lines = added(source)
    assert "export_npz(str('a') + '.snapshot', 'a', names=layers.chain_names)" in lines


def test_weights_are_loaded_before_the_pipeline_only():
    line = "serializers.load_npz('weights', model)"
    assert line not in added(training_script(before="model = net\n" + line))
    ((_, text, _),) = obstacles(training_script(after=line))
    assert "is used behind the updater" in text


def test_a_file_of_one_object_is_left_to_the_command():
    line = "trainer.extend(extensions.snapshot_object(model, 'a'), trigger=t)"
    assert line in removed(training_script(after=line))


@pytest.mark.parametrize(
    "line, words",
    [
        ("trainer.extend(extensions.snapshot(target=model))", "a snapshot of model"),
        ("serializers.load_npz('a', optimizer)", "a file of optimizer"),
        ("c = chainermn.create_multi_node_checkpointer('a', comm)", "checkpointer"),
    ],
)
def test_files_that_no_rank_could_use_are_refused(line, words):
    faults = obstacles(training_script(after=line))
    assert words in faults[0][1] and faults[0][2] == "howto/resume"
