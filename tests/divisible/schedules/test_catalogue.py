import pytest

from divisible.schedules import NAMES, ScheduleError, create


@pytest.mark.parametrize("name", NAMES)
def test_schedules_that_do_not_fit_into_memory_are_refused(name):
    with pytest.raises(ScheduleError, match="1000000000 microbatches have more"):
        create(name, 4, 10**9)
