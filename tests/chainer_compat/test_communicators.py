"""Old names of communicators mean today's, where there is what they need."""

import chainermn
import pytest
from chainer.backends import cuda
from chainermn import nccl

from chainer_compat._communicators import current_name

# Chainer's own, without an alias.
NAMES = ["naive", "flat", "pure_nccl", "non_cuda_aware", "dummy"]


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(cuda, "available", True)
    monkeypatch.setattr(nccl, "_available", True)


@pytest.mark.parametrize("name", [*NAMES, "nonsense"])
def test_today_s_names_stay(name, gpu):
    assert current_name(name) == name


@pytest.mark.parametrize(
    "name", ["nccl", "hierarchical", "two_dimensional", "single_node"]
)
def test_old_names_are_aliases(name, gpu, monkeypatch):
    assert current_name(name) == "pure_nccl"
    monkeypatch.setattr(nccl, "_available", False)
    with pytest.raises(RuntimeError, match="which is 'pure_nccl' today, needs NCCL"):
        current_name(name)


@pytest.mark.parametrize("name", ["flat", "dummy"])
def test_what_needs_no_nccl(name, gpu, monkeypatch):
    monkeypatch.setattr(nccl, "_available", False)
    assert current_name(name) == name


def test_the_edit_is_in_chainermn(gpu, monkeypatch):
    """The alias comes before the check of arguments that only one name may have."""
    with pytest.raises(ValueError, match="is only available"):
        chainermn.create_communicator("flat", allreduce_grad_dtype="f")
    monkeypatch.setattr(cuda, "available", False)
    with pytest.raises(RuntimeError, match="'nccl', which is 'pure_nccl' today"):
        chainermn.create_communicator("nccl", allreduce_grad_dtype="f")
