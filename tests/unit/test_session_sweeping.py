"""Which files are nobody's."""

from datetime import timedelta

import given
from lcm.controllers.session.sweeping import leftovers
from lcm.providers.artifacts import Listed

NOW = given.moment("10:00", day=60)
MONTH = timedelta(days=30)


def listed(name: str, age: timedelta) -> Listed:
    return Listed(uri=f"artifact://tmp/{name}", size_bytes=1, stored_at=NOW - age)


def left(name: str, age: timedelta) -> bool:
    return bool(leftovers([listed(name, age)], {"live"}, NOW, kept_for=MONTH))


def test_a_live_sessions_file_is_kept_and_one_of_an_ended_session_is_not() -> None:
    assert not left("live/lab.yaml", timedelta(days=2))
    assert left("ended/lab.yaml", timedelta(hours=2))
    assert not left("ended/lab.yaml", timedelta(minutes=59)), "its session may not be known yet"


def test_what_was_collected_is_kept_as_long_as_was_said() -> None:
    assert not left("collected/ended/lab.yaml", timedelta(days=29))
    assert left("collected/live/lab.yaml", timedelta(days=30))
