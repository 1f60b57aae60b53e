"""What several unit tests begin with."""

from collections.abc import Iterator

import pytest

from harness.api_world import ApiServer, served


@pytest.fixture(name="api")
def served_api() -> Iterator[ApiServer]:
    """Serve an API on a real port."""
    with served() as server:
        yield server
