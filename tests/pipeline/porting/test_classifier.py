"""A Classifier's predictor is divided; the pipeline has its loss and accuracy."""

import pytest

from tests.support.ported import added, obstacles, training_script


@pytest.mark.parametrize(
    "model, before, arguments",
    [
        ("L.Classifier(net)", "", ""),
        (
            "L.Classifier(net, lossfun=F.mean_squared_error)",
            "",
            ", lossfun=model.lossfun",
        ),
        ("L.Classifier(net, accfun=f)", "", ", accfun=model.accfun"),
        ("L.Classifier(net)\nmodel.compute_accuracy = False", "", ", accfun=None"),
        (
            "L.Classifier(net)\nmodel.compute_accuracy = args.a",
            "",
            ", accfun=model.accfun if model.compute_accuracy else None",
        ),
        ("L.Classifier(a) if args.a else L.Classifier(b)", "", ""),
    ],
)
def test_loss_and_accuracy_go_to_the_pipeline(model, before, arguments):
    lines = added(training_script(model=model, before=before))
    assert f"pipe = Pipeline(layers, comm, n_microbatches=4{arguments})" in lines
    assert any(
        line.startswith("layers = from_chain(model.predictor,") for line in lines
    )


def test_labels_elsewhere_are_refused():
    ((line, text, _),) = obstacles(
        training_script(model="L.Classifier(net, label_key=0)")
    )
    assert line == 11 and "labels" in text
