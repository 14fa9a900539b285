"""Directories for files that are larger than memory."""

import os

import pytest

from divisible.streaming import StoreError, directories
from divisible.streaming.directories import usable_directory


def test_directories(tmp_path, monkeypatch):
    assert usable_directory(tmp_path) == tmp_path
    with pytest.raises(StoreError, match="no such directory"):
        usable_directory(tmp_path / "missing")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StoreError, match="cannot be written to"):
        usable_directory(tmp_path)


def test_memory_is_no_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(directories, "file_system", lambda path: "tmpfs")
    with pytest.raises(StoreError, match="a tmpfs, which lies in memory"):
        usable_directory(tmp_path)


def test_file_systems_are_found_by_the_longest_mount(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "a / ext4 rw 0 0\nb /some\\040where tmpfs rw 0 0\nc /some nfs rw 0 0\n"
    )
    found = [
        directories.file_system(tmp_path.__class__(path), mounts)
        for path in ("/", "/some where/deep", "/some/where", "/elsewhere")
    ]
    assert found == ["ext4", "tmpfs", "nfs", "ext4"]
    assert directories.file_system(tmp_path, tmp_path / "missing") == ""
