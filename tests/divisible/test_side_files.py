"""Files that a run can do without."""

import itertools
import json
import warnings

import pytest

from divisible.records import read_lines
from divisible.side_files import SideFiles, append_line
from tests.support.faulty_files import Fault, faulty


def test_a_run_goes_on_with_one_warning(tmp_path):
    files = SideFiles("the log", "Buy a disk.")
    with pytest.warns(UserWarning) as caught:
        for _ in range(3):
            with faulty(tmp_path, Fault("ENOSPC", 0, True)), files.writing(tmp_path):
                append_line(tmp_path / "log", "{}")
    # Objects of earlier tests may warn when they are freed.
    (warning,) = [each for each in caught if "the log" in str(each.message)]
    for words in (f"the log cannot be written to {tmp_path}", "No space left", "free"):
        assert words in str(warning.message)
    assert str(warning.message).endswith("Buy a disk.")
    assert files.n_failed == 3


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError(), MemoryError()])
def test_other_errors_are_raised(error):
    with pytest.raises(type(error)), SideFiles("the log").writing("log"):
        raise error


@pytest.mark.parametrize("kind", ["ENOSPC", "EDQUOT", "EIO", "short"])
def test_a_torn_line_spoils_no_other(tmp_path, kind):
    """Whichever call goes wrong, the lines before and after it can be read."""
    with faulty(tmp_path) as files:
        append_line(tmp_path / "sub" / "log", "{}")
    n_calls = len(files.calls)
    assert n_calls > 3
    for at, lasts in itertools.product(range(n_calls), (False, True)):
        path = tmp_path / f"sub{at}{lasts}" / "log"
        for number in range(6):
            fault = Fault(kind, at, lasts) if number == 3 else None
            with faulty(tmp_path, fault):
                try:
                    append_line(path, json.dumps({"n": number}))
                except OSError:
                    assert number == 3
        # A process that ends leaves half a line as well.
        with open(path, "a") as file:
            file.write('{"n": 6')
        append_line(path, json.dumps({"n": 7}))
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            found = read_lines(path, "a number", lambda fields: fields["n"])
        assert [n for n in found if n != 3] == [0, 1, 2, 4, 5, 7]
