"""What the tests with the real packages share."""

import pytest
from places import REPOSITORY


@pytest.fixture(scope="session")
def prompted():
    """A tiny model with a prompt for queries and none for documents."""
    return str(REPOSITORY / "tests/compat/v1/model")
