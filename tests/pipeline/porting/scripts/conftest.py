"""The scripts beside this file are run by tests, and not collected."""

collect_ignore_glob = ["*.py"]
