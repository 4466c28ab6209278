"""The numbers of APIs that Tidegate names are those of Kafka's own table."""

import re

from tidegate import api_keys
from tidegate.wire import API_BY_KEY


def test_api_keys_are_those_of_the_table() -> None:
    """Each constant has the number of the API that it is called after."""
    by_name = {re.sub("(?<!^)([A-Z])", r"_\1", api.name).upper(): key for key, api in API_BY_KEY.items()}
    assert {
        name: getattr(api_keys, name) for name in api_keys.__all__ if name.isupper()
    }.items() <= by_name.items()
