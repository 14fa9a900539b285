"""Graphs of cuDNN: which engine computes, what is kept, what is said if none does."""

import threading
import warnings
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from chainer_kernels.providers import cudnn_library
from chainer_kernels.providers.cudnn_library import EngineChoice, Operand, Request
from tests.support import fake_cudnn
from tests.support.fake_cudnn import on_gpu


def add(graph, x, y):
    return (graph.bias(input=x, bias=y),)


def request(n=3, **options):
    operand = Operand((1, n), (n, 1), "f")
    return Request(add, (operand, operand), (operand,), **options)


def executed(graph, n=3):
    arrays = [on_gpu(np.arange(n, dtype="f")[None]) for _ in range(3)]
    cudnn_library.execute(graph, arrays)
    return np.asarray(arrays[-1])


def test_a_graph_is_made_once():
    with fake_cudnn.gpu() as graphs:
        first = cudnn_library.find(request())
        assert cudnn_library.find(request()) is first
        assert cudnn_library.find(request(4)) is not first
        assert cudnn_library.find(request(choice=EngineChoice(True))) is not first
        assert len(graphs.made) == 3
        np.testing.assert_array_equal(executed(first), [[0, 2, 4]])
        assert first.graph.streams == [fake_cudnn.STREAM]


def test_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(cudnn_library, "_KEPT", 2)
    with fake_cudnn.gpu() as graphs:
        for n in (1, 2, 3, 3, 2, 1):
            cudnn_library.find(request(n))
        assert len(graphs.made) == 4


ENGINES = (
    {"TENSOR_CORE", "REDUCED_PRECISION_REDUCTION"},
    {"TENSOR_CORE"},
    {"DOWN_CONVERT_INPUTS"},
    {"NONDETERMINISTIC"},
    set(),
)


@pytest.mark.parametrize(
    ("choice", "engine"),
    [
        (EngineChoice(), 3),
        (EngineChoice(tensor_cores=True), 1),
        (EngineChoice(is_deterministic=True), 4),
        (EngineChoice(tensor_cores=True, is_deterministic=True), 1),
        # Later ones are faster here.
        (EngineChoice(is_tuned=True), 4),
    ],
)
def test_engine(choice, engine):
    with fake_cudnn.gpu() as graphs:
        graphs.engines = ENGINES
        graph = cudnn_library.find(request(choice=choice))
        assert graph.graph.selected == engine
        np.testing.assert_array_equal(executed(graph), [[0, 2, 4]])


def test_so_many_engines_are_tried(monkeypatch):
    monkeypatch.setattr(cudnn_library, "_N_TUNED", 2)
    with fake_cudnn.gpu() as graphs:
        graphs.engines = ENGINES
        graph = cudnn_library.find(request(choice=EngineChoice(True, is_tuned=True)))
        assert graph.graph.selected == 2


def test_refusals_are_told_once():
    with fake_cudnn.gpu() as graphs, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graphs.engines = ({"TENSOR_CORE"},)
        assert cudnn_library.find(request(), is_vital=False) is None
        assert not caught
        for n in (3, 4):
            assert cudnn_library.find(request(n)) is None
    (warning,) = caught
    assert "the engine is excluded" in str(warning.message)


def test_threads_have_their_own_graphs_and_lend_handles():
    with fake_cudnn.gpu():
        seen = []

        def compute():
            graph = cudnn_library.find(request())
            executed(graph)
            seen.append((graph, cudnn_library._here.handle(0)))

        compute()
        for _ in range(2):
            thread = threading.Thread(target=compute)
            thread.start()
            thread.join()
    graphs, handles = zip(*seen)
    assert len({id(graph) for graph in graphs}) == 3
    assert handles[0] is not handles[1]
    assert handles[1] is handles[2], "a thread that ended gives its handle back"


@pytest.fixture
def uncached():
    cudnn_library.library.cache_clear()
    yield
    cudnn_library.library.cache_clear()


def test_without_the_package(uncached):
    with mock.patch("importlib.util.find_spec", return_value=None) as find:
        assert cudnn_library.library() is None
    find.assert_called_once_with("cudnn")


def _raises():
    raise RuntimeError("Unable to find symbol cudnnGetVersion")


@pytest.mark.parametrize(
    "package", [SimpleNamespace(), SimpleNamespace(backend_version=_raises)]
)
def test_broken_package(uncached, package):
    with (
        mock.patch("importlib.util.find_spec", return_value=object()),
        mock.patch("importlib.import_module", return_value=package),
        pytest.warns(RuntimeWarning, match="nvidia-cudnn-cu13") as caught,
    ):
        assert cudnn_library.library() is None
        assert cudnn_library.library() is None
    assert len(caught) == 1
