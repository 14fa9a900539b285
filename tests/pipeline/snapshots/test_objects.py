"""Objects beside the layers that are refused."""

import chainer
import numpy as np
import pytest

from pipeline import SnapshotError


@pytest.mark.parametrize("thing", [object(), np.array([object()])])
def test_objects_are_not_pickled(tmp_path, save, thing):
    """To read them would run whatever code is in the file."""

    class Careless(chainer.Link):
        def serialize(self, serializer):
            serializer("thing", thing)

    with pytest.raises(SnapshotError, match="link/thing is of "):
        save(tmp_path / "1", state={"link": Careless()})


@pytest.mark.parametrize("name", ["numpy", "python", "pipeline"])
def test_names_that_are_taken(tmp_path, save, name):
    with pytest.raises(SnapshotError, match="are taken by what every snapshot has"):
        save(tmp_path / "1", state={name: np.random.RandomState(0)})
