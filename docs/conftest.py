"""The examples in these pages are tests; programs run in tests/docs."""

collect_ignore_glob = ["*.py", "*/*.py"]
