"""Write a small usage record with the code of one version of Tidegate: a segment, its events and its Parquet file.

    PYTHONPATH=<checkout of that version>/src python write_record.py tests/vectors/usage-record/<version>

Rows of every kind that the version has are packed by its own table of fields. `events.json` holds what its own reader
made of them, the Parquet file what its own writer made. A new format version gets a folder of its own.
"""

import json
import struct
import sys
from pathlib import Path

from tidegate.usage import columns, convert, events, segment

START_MS = 1_700_000_000_000
FIRST_SEQ = 1_700_000_000_000_000
TEXTS = {
    "listener": "PLAINTEXT",
    "user": "alice",
    "client_id": "loader",
    "client_host": "10.0.0.7",
    "client_software": "librdkafka",
    "client_software_version": "2.8.0",
    "quota_user": "alice",
    "quota_client_id": None,
    "quota_ip": None,
    "quota_key": "producer_byte_rate",
    "callback": "acme.Limits",
    "tags": '{"team": "a"}',
    "snapshot": "begins",
}
CODES = "<" + "".join(code for _, code in segment.ROW_FIELDS)
FIELDS = [name for name, code in segment.ROW_FIELDS if not code.endswith("x")]
IN_PLACE_OF = getattr(segment, "IN_PLACE_OF", {})


class Rows:
    """The packed rows and the records of names, so far; events of kinds that the version lacks are left out."""

    def __init__(self):
        self.packed = []
        self.names = []
        self._events = 0

    def add(self, kind, flags=0, **values):
        """Pack an event 10 ms after the one before; a column without a value is null or 0."""
        self._events += 1
        if kind not in columns.KINDS:
            return
        row = dict.fromkeys(FIELDS, 0)
        for column in columns.COLUMNS:
            if column.name in row and kind in column.kinds and column.nullable and column.name != "topic":
                row[column.name] = -1
        row.update({name: value for name, value in values.items() if name in row and name != "topic"})
        if kind == "request":
            if "produce_bytes" in values and "produce_bytes" not in row:
                flags |= segment.PRODUCED
            for name, place in IN_PLACE_OF.items():
                row[place] = values.get(name, -1) + 1
        row["ts_ms"] = START_MS + 10 * self._events
        row |= {"kind": columns.KINDS.index(kind) + 1, "flags": flags, "marker": segment.MARKER}
        row["names"] = self._number(kind, values)
        if "topic" in row and "topic" in values:
            row["topic"] = self._numbered(segment.topic_names(values["topic"]))
        self.packed.append(struct.pack(CODES, *(row[name] for name in FIELDS)))

    def _number(self, kind, values):
        texts = [
            c.name
            for c in columns.COLUMNS
            if c.type == "string" and kind in c.kinds and c.name not in ("kind", "topic")
        ]
        record = tuple(values.get(name, TEXTS[name]) for name in texts)
        return self._numbered(record) if record else 0

    def _numbered(self, record):
        if record not in self.names:
            self.names.append(record)
        return self.names.index(record) + 1


def rows():
    """Return rows of every kind."""
    found = Rows()
    found.add("start")
    found.add("quota", segment.QUOTA_VALUE, quota_value=1024.0)
    produce = {"connection_id": FIRST_SEQ + 7, "api_key": 0, "api_version": 9}
    for n in range(12):
        sizes = {"request_bytes": 4000 + n, "response_bytes": 50, "produce_bytes": 4000 + n}
        times = {"handler_ns": 90_000 + n, "network_ns": 20_000, "produce_throttle_ms": 100 * n}
        topics = {"topic": f"orders-{n % 3}", "other_topics": n // 8}
        found.add("request", **produce, **sizes, **times, **topics)
    fetch = {"connection_id": FIRST_SEQ + 8, "api_key": 1, "api_version": 12, "client_id": "reader"}
    for n in range(6):
        sizes = {"request_bytes": 80, "response_bytes": 5000 + n, "fetch_bytes": 5000 + n}
        times = {"handler_ns": 70_000 + n, "network_ns": 15_000, "early_ms": 3}
        topics = {"topic": "orders-0", "other_topics": 0} if n else {"other_topics": 0}
        found.add("request", **fetch, **sizes, **times, lag=500 - n, lag_bytes=2_000_000, **topics)
    found.add("network", **produce, network_ns=33_000)
    create = {"connection_id": FIRST_SEQ + 9, "api_key": 19, "api_version": 6}
    found.add("mutation", columns.STRICT, **create, mutations=4, user="ANONYMOUS", client_id="")
    found.add("expire")
    found.add("gap", lost_events=2)
    found.add("clock", wall_offset_ms=-1500)
    found.add("callback")
    found.add("tags", segment.QUOTA_VALUE, quota_value=2048.0)
    found.add("forwarded", **create, mutation_throttle_ms=70)
    found.add("snapshot")
    found.add("quota", quota_value=0.0)
    asks = {"connection_id": FIRST_SEQ + 7, "api_key": 18, "api_version": 3, "request_bytes": 60}
    found.add("request", **asks, response_bytes=400, handler_ns=5000, network_ns=1000, request_throttle_ms=12)
    return found


def main(out):
    """Write the folder."""
    made, spool = rows(), out / "spool"
    spool.mkdir(parents=True)
    header = segment.Header(node_id=1, first_seq=FIRST_SEQ, opened_ms=START_MS)
    path = segment.segment_path(spool, FIRST_SEQ, segment.CLOSED_SUFFIX)
    files = {
        path: segment.encode_header(header) + b"".join(made.packed),
        path.with_suffix(segment.NAMES_SUFFIX): b"".join(map(segment.encode_names, made.names)),
    }
    for file, data in files.items():
        file.write_bytes(data)
    text = json.dumps(list(events.read_segment(path)), separators=(",", ":"))
    (out / "events.json").write_text(text.replace("},{", "},\n{") + "\n")
    convert.convert_segment(path, out / "parquet", node_id=1)
    for file, data in files.items():
        file.write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
