"""Values in place of an iterator, and the errors about them."""

import chainer.links as L
import pytest
from mpi4py import MPI

from divisible import Divisible
from pipeline import Pipeline
from pipeline.training.minibatches import iterators_of_rank


class DataSet(list):
    """Samples, whose text would take long and fill the screen."""

    def __repr__(self):
        raise AssertionError("the samples were made a text")


@pytest.mark.parametrize(
    "given, words", [(DataSet([1, 2]), "DataSet"), (None, "None"), ({}, "None")]
)
def test_a_data_set_in_place_of_an_iterator_is_named_by_its_type(given, words):
    pipe = Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=1)
    with pytest.raises(TypeError, match=rf"SerialIterator\(.*\), not {words}$"):
        iterators_of_rank(given, pipe)
    pipe.close()
