"""Columns that usage can be grouped by and that the usage record does not have as they are: API names and topics.

A row counts for one topic: the topic in its Produce or Fetch with the most bytes of records. Rows without one are in a
group whose name no topic can have.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from tidegate.api_keys import FETCH, api_name
from tidegate.pipeline.read.chunks import Chunk
from tidegate.pipeline.read.columns import is_there, name_places, numbers_of, numbers_of_names

__all__ = [
    "API",
    "NO_RECORDS",
    "NO_TOPIC",
    "NO_TOPICS",
    "TOPIC",
    "UNKNOWN_TOPIC",
    "first_chunks",
    "has_topics",
    "source_columns",
    "with_groups",
]

API, TOPIC = "api", "topic"
NO_RECORDS = "(no records)"
"""Group of a Produce or Fetch without records."""
UNKNOWN_TOPIC = "(unknown)"
"""Group of a Produce or Fetch whose row does not contain its topic."""
NO_TOPIC = "(other requests)"
"""Group of all other rows."""

NO_TOPICS = (NO_RECORDS, UNKNOWN_TOPIC, NO_TOPIC)

_ROWS_LOOKED_AT = 1 << 20
_SOURCES = {API: ("api_key",), TOPIC: ("topic", "other_topics", "api_key")}


def source_columns(by: Sequence[str]) -> list[str]:
    """Return the columns of the usage record that the groups `by` are made of, each once."""
    return [*dict.fromkeys(source for name in by for source in _SOURCES.get(name, (name,)))]


def has_topics(by: Sequence[str]) -> bool:
    """Return whether rows are grouped by topic."""
    return TOPIC in by


def first_chunks(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return the chunks with the first million rows, by which the number of groups is estimated."""
    before = accumulate((chunk.rows for chunk in chunks), initial=0)
    return [chunk for chunk, rows in zip(chunks, before, strict=False) if rows < _ROWS_LOOKED_AT]


def with_groups(table: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the rows with the columns `by`, dictionary-encoded."""
    if API in by:
        table = table.append_column(API, _api_names(table["api_key"]))
    if TOPIC in by:
        place = table.column_names.index(TOPIC)
        table = table.set_column(place, TOPIC, _topic_groups(table))
    return table


def _api_names(api_key: pa.ChunkedArray) -> pa.Array:
    """Return the name of each row's API; null where a row is of no request."""
    encoded = api_key.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):  # as of an empty table
        encoded = encoded.combine_chunks()
    names = pa.array([api_name(key) for key in encoded.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(encoded.indices, names)


def _topic_groups(table: pa.Table) -> pa.Array:
    """Return the topic that each row counts for, or the group of rows without one."""
    is_request = numbers_of_names(table, "kind", lambda name: name == "request", np.bool_)
    of_topics = is_request & (numbers_of(table, "api_key") <= FETCH)
    places, topics = name_places(table, TOPIC)  # at place 0 is no topic
    no_topic, no_records, unknown = range(len(topics), len(topics) + 3)
    without = np.where(is_there(table, "other_topics"), no_records, unknown)
    groups = np.where(of_topics, np.where(places > 0, places, without), no_topic)
    names = pa.concat_arrays([topics, pa.array([NO_TOPIC, NO_RECORDS, UNKNOWN_TOPIC])])
    return pa.DictionaryArray.from_arrays(pa.array(groups.astype(np.int32)), names)
