"""The examples in these pages are tests; programs run in tests/docs."""

import importlib.util

collect_ignore_glob = ["*.py", "*/*.py"]
if importlib.util.find_spec("torch") is None:
    # PyTorch is an extra.
    collect_ignore_glob.append("howto/torch_modules.rst")
