"""Modules that Chainer renamed, under the names that they had.

::

    import chainer.links.connection.n_step_rnn      chainer.links.rnn.n_step_rnn
    from chainer.functions.activation import lstm   chainer.functions.rnn.lstm

Functions and links have the names that they had, in ``chainer.functions`` and
``chainer.links``; scripts import from these modules what lies beside them.
"""

import importlib
import sys

from chainer_compat._same_module import spec_of
from chainer_compat._warned import tell

_LINKS = "gru lstm mgu n_step_gru n_step_lstm n_step_rnn peephole tree_lstm zoneoutlstm"
#: Former names of modules, and those of today.
RENAMED = {
    # Chainer 7
    **{
        f"chainer.functions.activation.{name}": f"chainer.functions.rnn.{name}"
        for name in ("lstm", "slstm", "tree_lstm")
    },
    **{
        f"chainer.functions.connection.{name}": f"chainer.functions.rnn.{name}"
        for name in ("n_step_gru", "n_step_lstm", "n_step_rnn")
    },
    **{
        f"chainer.links.connection.{name}": f"chainer.links.rnn.{name}"
        for name in _LINKS.split()
    },
    # Chainer 6
    "chainer.functions.pooling.max_pooling_2d": (
        "chainer.functions.pooling.max_pooling_nd"
    ),
    # Chainer 3
    "chainer.training.triggers.interval": "chainer.training.triggers.interval_trigger",
    # Chainer 2
    "chainer.functions.caffe": "chainer.links.caffe",
}


def enable() -> None:
    """Finds these modules under their former names."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)


class _Finder:
    """Finds former names of modules that no other finder has found."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Returns the spec of a module that Chainer has under another name."""
        today = RENAMED.get(name)
        if today is None:
            return None
        module = importlib.import_module(today)
        tell(
            "Chainer's modules",
            f"this script imports {name}, which Chainer renamed: chainer_compat gave it"
            f" {today}",
        )
        return spec_of(name, module)
