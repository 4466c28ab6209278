"""One Spark session for all tests of this tier."""

import pytest

from tidegate.pipeline.spark.session import running_spark


@pytest.fixture(scope="session")
def spark():
    """A local session, set up as the commands set theirs up."""
    with running_spark(app_name="tests", master="local[2]", rows=0) as running:
        yield running
