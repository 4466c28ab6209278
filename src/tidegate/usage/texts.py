"""Texts of the columns `snapshot` and `tags`.

A snapshot of the engine's state consists of a row of kind `snapshot` with the text `begins`, a `quota` row for each
quota in force, a row for each sensor (several if its text is longer than a name may be), and a row with the text
`ends` and the number of rows of kind `snapshot` in between. Other rows may come in between: the state of each sensor is
that at the place of its own row.

>>> sensor_texts({"quota_key": "producer_byte_rate", "recorded_ms": -5, "samples": [[1.5, -9, -5]], "current": 0})
['{"quota_key":"producer_byte_rate","recorded_ms":-5,"samples":[[1.5,-9,-5]],"current":0}']
>>> rows_between(ends(3)), rows_between("begins")
(3, None)
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tidegate.usage.segment import NAME_BYTES_MAX

__all__ = ["BEGINS", "ends", "rows_between", "sensor_texts", "tags_text"]

BEGINS = "begins"
_ENDS = "ends "


def ends(rows: int) -> str:
    """Return the text of the last row of a snapshot with this number of rows of sensors."""
    return f"{_ENDS}{rows}"


def rows_between(text: str) -> int | None:
    """Return the number of rows of sensors from the text of a snapshot's last row; None: it is not a last row."""
    count = text.removeprefix(_ENDS)
    is_last = text.startswith(_ENDS) and count.isascii() and count.isdigit() and len(count) < 10
    return int(count) if is_last else None


def sensor_texts(state: Mapping[str, Any]) -> list[str]:
    """Return the state of a sensor as JSON in ASCII, in parts that fit into a name each; joined they are the whole."""
    text = _json(state)
    return [text[at : at + NAME_BYTES_MAX] for at in range(0, len(text), NAME_BYTES_MAX)]


def tags_text(tags: Mapping[str, str]) -> str:
    """Return tags as JSON in ASCII, in their order; a text that is longer than a name may be is replaced by a digest.

    >>> tags_text({"group": "etl"})
    '{"group":"etl"}'
    """
    text = _json(tags)
    return (
        text if len(text) <= NAME_BYTES_MAX else _json({"sha256": hashlib.sha256(text.encode()).hexdigest()})
    )


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), separators=(",", ":"))
