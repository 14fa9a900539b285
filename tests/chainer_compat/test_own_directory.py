"""A directory that another user could change is refused."""

import os
from pathlib import Path

import pytest

from chainer_compat import own_directory as module
from chainer_compat.own_directory import own_directory

SOMEBODY = 54321


@pytest.fixture
def give(monkeypatch):
    """Gives a path to another user, as far as anybody can see."""
    theirs, lstat = set(), Path.lstat

    def seen(path):
        status = lstat(path)
        if path not in theirs:
            return status
        return os.stat_result((*status[:4], SOMEBODY, *status[5:10]))

    monkeypatch.setattr(Path, "lstat", seen)
    return theirs.add


@pytest.fixture
def folder(tmp_path):
    """A directory of this user's, with ``a/b`` in it."""
    (tmp_path / "a" / "b").mkdir(parents=True, mode=0o755)
    return tmp_path


def test_what_is_missing_is_made_for_this_user_alone(folder):
    mask = os.umask(0)
    try:
        assert own_directory(folder / "new" / "one") == folder / "new" / "one"
    finally:
        os.umask(mask)
    for each in (folder / "new", folder / "new" / "one"):
        assert each.stat().st_mode & 0o7777 == 0o700
    assert own_directory(folder / "a" / "b") == folder / "a" / "b"


def test_nothing_is_made_where_that_is_not_wanted(folder):
    with pytest.raises(FileNotFoundError):
        own_directory(folder / "new", make=False)
    assert not (folder / "new").exists()


@pytest.mark.parametrize("mode", [0o777, 0o707, 0o702])
@pytest.mark.parametrize("which", ["a", "a/b"])
def test_a_directory_that_others_can_write_to_is_refused(folder, which, mode):
    (folder / which).chmod(mode)
    with pytest.raises(PermissionError, match=f"chmod go-w {folder / which}, or give"):
        own_directory(folder / "a" / "b")


def test_a_sticky_directory_may_be_on_the_way_and_not_the_end(folder):
    (folder / "a").chmod(0o1777)
    assert own_directory(folder / "a" / "b") == folder / "a" / "b"
    with pytest.raises(PermissionError, match=f"other users can write to {folder}/a"):
        own_directory(folder / "a")


@pytest.mark.parametrize("which", ["a", "a/b"])
def test_a_directory_of_another_user_is_refused(folder, give, which):
    give(folder / which)
    with pytest.raises(PermissionError, match=f"{folder / which} belongs to the user"):
        own_directory(folder / "a" / "b")


def test_one_of_roots_may_be_on_the_way_and_not_the_end(folder, give, monkeypatch):
    monkeypatch.setattr(module, "_ROOT", SOMEBODY)
    give(folder / "a")
    assert own_directory(folder / "a" / "b") == folder / "a" / "b"
    with pytest.raises(PermissionError, match="Give a directory of your own"):
        own_directory(folder / "a")


def test_links_lead_to_what_is_checked(folder):
    (folder / "link").symlink_to("a/../a")
    assert own_directory(folder / "link" / "b") == folder / "a" / "b"
    (folder / "absolute").symlink_to(folder / "link")
    assert own_directory(folder / "absolute" / "new") == folder / "a" / "new"
    (folder / "a").chmod(0o777)
    with pytest.raises(PermissionError, match=f"can write to {folder / 'a'}"):
        own_directory(folder / "absolute" / "b")


def test_a_link_of_another_user_is_refused(folder, give):
    (folder / "link").symlink_to("a")
    give(folder / "link")
    with pytest.raises(PermissionError, match=f"{folder / 'link'} belongs to"):
        own_directory(folder / "link" / "b")


def test_links_in_a_circle_end(folder):
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    with pytest.raises(OSError, match="symbolic links"):
        own_directory(folder / "one" / "b")


def test_what_is_no_directory_is_refused(folder):
    (folder / "file").touch()
    for path in (folder / "file", folder / "file" / "b"):
        with pytest.raises(NotADirectoryError):
            own_directory(path)


@pytest.mark.parametrize("path", ["a/b", "~/.cache", ""])
def test_a_path_that_depends_on_the_place_is_refused(path, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(NotADirectoryError, match="Give an absolute path"):
        own_directory(path)
    assert os.listdir(folder) == ["a"]


@pytest.mark.parametrize(
    "number, name, others, is_private",
    [
        (1000, "me", [], True),
        (1000, "me", ["me"], True),
        (1000, "me", ["me", "you"], False),
        (1000, "users", [], False),
        (1001, "me", [], False),
        # Some containers give each user root's group.
        (0, "me", [], False),
    ],
)
def test_the_group_of_one_user_may_write(
    folder, monkeypatch, number, name, others, is_private
):
    (folder / "a").chmod(0o775)
    group = folder.stat().st_gid
    me = ("me", "", os.geteuid(), 1000 if number else 0, "", "/", "/bin/sh")
    found = module.grp.struct_group((name, "", number, others))
    monkeypatch.setattr(module.pwd, "getpwuid", lambda _: module.pwd.struct_passwd(me))
    monkeypatch.setattr(module.grp, "getgrgid", lambda _: found)
    private = module._is_private
    monkeypatch.setattr(
        module, "_is_private", lambda each: private(number if each == group else each)
    )
    if is_private:
        assert own_directory(folder / "a") == folder / "a"
    else:
        with pytest.raises(PermissionError, match="other users can write"):
            own_directory(folder / "a")
