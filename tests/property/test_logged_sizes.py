"""Sizes that are added up from the JSON of the request log are those that the codecs write."""

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.messages import all_layouts, messages, title

from tidegate.kafka_log.sizes import body_size
from tidegate.wire import write_request, write_response
from tidegate.wire.definitions import Field, layout

FEW = settings(max_examples=2)  # of each of 554 messages, others each time


def as_logged(fields: tuple[Field, ...], message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as Kafka writes it into the log: tagged fields where they are set, of records their size."""
    found: dict[str, Any] = {}
    for field in fields:
        value = message[field.name]
        if field.tag is not None and value == field.default:
            continue
        first, *rest = field.name.split("_")
        name = first + "".join(word.capitalize() for word in rest)
        if field.type == "records":
            found["recordsSizeInBytes"] = None if value is None else len(value)
        elif field.array and value is not None:
            found[name] = [_logged(field, element) for element in value]
        else:
            found[name] = _logged(field, value)
    return found


def _logged(field: Field, value: Any) -> Any:
    if field.type == "struct" and value is not None:
        return as_logged(field.fields, value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def without_unknown_tags(value: Any) -> Any:
    """Return a message without what the log does not show."""
    if isinstance(value, dict):
        return {key: without_unknown_tags(inner) for key, inner in value.items() if key != "_unknown_tags"}
    return [without_unknown_tags(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", list(all_layouts()), ids=title)
@FEW
@given(data=st.data())
def test_sizes_are_those_that_the_codecs_write(case: tuple[int, int, str], data: st.DataObject) -> None:
    """Of every message in every version."""
    api_key, api_version, direction = case
    message = without_unknown_tags(data.draw(messages(api_key, api_version, direction)))
    write = write_request if direction == "request" else write_response
    logged = as_logged(layout(api_key, api_version, direction).fields, message)
    assert body_size(api_key, api_version, direction)(logged) == len(write(api_key, api_version, message))
