"""Whatever is recorded comes back, and whatever a disk does to it is one clear error at most."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.usage.reading import read_events
from tests.unit.usage.recording import (
    START_MS,
    Decided,
    asked,
    client,
    open_recorder,
    record,
    record_requests,
    segment_of,
    spool_directory,
)  # fmt: skip

from tidegate.api_keys import FETCH
from tidegate.quota import UNLIMITED, QuotaRecord, sanitize
from tidegate.server.requests.recorder import Recorder
from tidegate.server.requests.request_rows import FETCHED, NONE, THROTTLED, Client
from tidegate.testing import ManualClock
from tidegate.usage.columns import EXEMPT, NAME_COLUMNS, OBSERVED_ONLY, empty_event
from tidegate.usage.convert import drain
from tidegate.usage.directory import parquet_directory
from tidegate.usage.events import read_segment
from tidegate.usage.files import ParquetFile, parquet_path, split_superseded
from tidegate.usage.segment import (
    CLOSED_SUFFIX,
    NAMES_SUFFIX,
    PRODUCED,
    SpoolError,
    load_segment,
    segment_paths,
)
from tidegate.usage.segment_table import segment_table
from tidegate.usage.texts import tags_text

INT64 = st.integers(-(2**63), 2**63 - 1)
COUNT = st.integers(0, 2**63 - 1)
INT32 = st.integers(0, 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
TIME = st.integers(START_MS - 10**8, START_MS + 10**8)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CLIENT_COLUMNS = NAME_COLUMNS["request"]
NAMES = st.tuples(*[TEXT] * len(CLIENT_COLUMNS))
NULLABLE = st.one_of(st.none(), COUNT)
LAG = st.one_of(st.none(), st.integers(0, 2**63 - 2))

REQUEST_COLUMNS = (
    ("connection_id", INT64),
    ("api_key", INT16),
    ("api_version", INT16),
    ("request_bytes", COUNT),
    ("response_bytes", COUNT),
    ("produce_bytes", NULLABLE),
    ("fetch_bytes", NULLABLE),
    ("handler_ns", COUNT),
    ("network_ns", NULLABLE),
    ("produce_throttle_ms", INT32),
    ("fetch_throttle_ms", INT32),
    ("request_throttle_ms", INT32),
    ("mutation_throttle_ms", INT32),
    ("early_ms", st.one_of(st.none(), INT32)),
    ("lag", LAG),
    ("lag_bytes", LAG),
    ("topic", st.none() | TEXT),
    ("other_topics", st.integers(0, 2**31 - 1)),
)
SHARED_COLUMNS = REQUEST_COLUMNS[:3]


def event(kind, *columns, flags=()):
    """Return a strategy of what fills an event of `kind`."""
    fields = dict(columns) | {name: st.booleans() for name in flags}
    return st.fixed_dictionaries({"kind": st.just(kind), "ts_ms": TIME, **fields})


def client_event(kind, *columns, flags):
    return st.tuples(event(kind, *columns, flags=flags), NAMES).map(
        lambda pair: pair[0] | dict(zip(CLIENT_COLUMNS, pair[1], strict=True))
    )


def as_charged(fields):
    """Return a request that is charged to the produce quota for all its bytes, or for none, and has topics or not."""
    is_charged = fields["produce_bytes"] is not None
    charged = {"produce_bytes": fields["request_bytes"] if is_charged else None}
    if fields["topic"] is None:  # then no topic has records, or the request is not a Produce or Fetch
        charged["other_topics"] = 0 if fields["api_key"] <= FETCH else None
    return fields | charged


EVENTS = st.one_of(
    event("start"),
    event("expire"),
    event("clock", ("wall_offset_ms", INT64)),
    event(
        "quota",
        ("quota_user", st.none() | TEXT),
        ("quota_client_id", st.none() | TEXT),
        ("quota_ip", st.none() | TEXT),
        ("quota_key", TEXT),
        ("quota_value", st.none() | st.floats(width=64)),
    ),
    event("callback", ("callback", st.none() | TEXT)),
    event(
        "tags",
        ("user", TEXT),
        ("client_id", TEXT),
        ("quota_key", TEXT),
        ("quota_value", st.none() | st.floats(width=64).filter(lambda limit: limit != UNLIMITED)),
        ("tags", st.dictionaries(TEXT, TEXT, max_size=3)),
    ),
    event(
        "snapshot",
        ("quota_user", st.none() | TEXT),
        ("quota_client_id", st.none() | TEXT),
        ("snapshot", TEXT),
    ),
    client_event("request", *REQUEST_COLUMNS, flags=("exempt", "observed_only")).map(as_charged),
    client_event("network", *SHARED_COLUMNS, ("network_ns", COUNT), flags=("exempt",)),
    client_event("mutation", *SHARED_COLUMNS, ("mutations", COUNT), flags=("strict", "rejected")),
)


def replay(recorder: Recorder, fields: dict, number: int) -> None:
    """Make the call that records an event. Tags never have the name of others: so each of them is a row."""
    kind, now_ms = fields["kind"], fields["ts_ms"]
    if kind in ("start", "expire"):
        getattr(recorder, kind)(now_ms)
        return
    if kind == "clock":
        recorder.clock(now_ms, fields["wall_offset_ms"])
        return
    if kind == "callback":
        recorder.callback(fields["callback"], now_ms)
        return
    if kind == "snapshot":
        recorder.snapshot(now_ms, fields["quota_user"], fields["quota_client_id"], fields["snapshot"])
        return
    if kind == "tags":
        bound = UNLIMITED if fields["quota_value"] is None else fields["quota_value"]
        sensor = SimpleNamespace(name=str(number), tags=fields["tags"], bound=bound)
        quota_type = SimpleNamespace(key=fields["quota_key"])
        recorder.tags(quota_type, fields["user"], fields["client_id"], sensor, now_ms)
        return
    if kind == "quota":
        names = ((part, fields[f"quota_{part.replace('-', '_')}"]) for part in ("user", "client-id", "ip"))
        entity = tuple((part, name) for part, name in names if name is not None)
        record = QuotaRecord(entity=entity, key=fields["quota_key"], value=fields["quota_value"])
        recorder.quota(record, now_ms)
        return
    who = Client(tuple(fields[name] for name in CLIENT_COLUMNS))
    if kind == "request":
        flags = EXEMPT * fields["exempt"] | OBSERVED_ONLY * fields["observed_only"]
        record_requests(recorder, who, _decided(fields, flags))
        return
    request = asked(
        who, id=fields["connection_id"], api_key=fields["api_key"], api_version=fields["api_version"]
    )
    if kind == "network":
        network_ns = NONE if fields["network_ns"] is None else fields["network_ns"]
        recorder.network(*request, now_ms, network_ns, fields["exempt"])
        return
    quota = SimpleNamespace(strict=fields["strict"])
    recorder.mutation(*request, fields["mutations"], quota, not fields["rejected"], now_ms)


def _decided(fields: dict, flags: int) -> Decided:
    """Return a request as the front has it."""
    throttles = {
        f"{kind}_ms": fields[f"{kind}_throttle_ms"] for kind in ("produce", "fetch", "request", "mutation")
    }
    numbers = {
        name: NONE if fields[name] is None else fields[name]
        for name in ("fetch_bytes", "network_ns", "lag", "lag_bytes")
    }
    row_flags = flags | FETCHED | THROTTLED | (0 if fields["produce_bytes"] is None else PRODUCED)
    return Decided(
        now_ms=fields["ts_ms"], api_key=fields["api_key"], api_version=fields["api_version"],
        connection_id=fields["connection_id"], early_ms=fields["early_ms"], response_bytes=fields["response_bytes"],
        row_flags=row_flags, frame_bytes=fields["request_bytes"], topic=fields["topic"],
        other_topics=fields["other_topics"] or 0,
        handler_ns=fields["handler_ns"], throttle_ms=1, **throttles, **numbers,
    )  # fmt: skip


@settings(max_examples=40)
@given(st.lists(EVENTS, max_size=30), st.integers(8, 20))
def test_what_is_recorded_comes_back(fields, rows):
    """Through the spool and through Parquet, every event and every bit, in order."""
    with tempfile.TemporaryDirectory() as directory:
        recorder = open_recorder(Path(directory), ManualClock(), segment_bytes=segment_of(rows))
        for number, each in enumerate(fields):
            replay(recorder, each, number)
        recorder.close()
        spool = spool_directory(Path(directory), 1)
        expected = [
            empty_event(each["kind"]) | {"node_id": 1, "seq": START_MS * 1000 + index} | each
            for index, each in enumerate(_without_repeated_sweeps(_as_kept(fields)))
        ]
        found = [each for path in segment_paths(spool, CLOSED_SUFFIX) for each in read_segment(path)]
        assert repr(found) == repr(expected)  # as text: NaN equals NaN, and 0.0 is not -0.0
        drain(spool, parquet_directory(Path(directory)))
        assert repr(list(read_events(Path(directory)))) == repr(expected)


def _as_kept(fields):
    """Return the events, those with tags with their callback, and with tags and entities as they are kept."""
    callback, found = None, []
    for each in fields:
        if each["kind"] in ("callback", "start"):
            callback = each.get("callback")
        more = {}
        if each["kind"] == "tags":
            more = {"callback": callback, "tags": tags_text(each["tags"])}
        elif each["kind"] == "quota":
            entity = {name: each[name] for name in ("quota_user", "quota_client_id", "quota_ip")}
            more = {name: None if text is None else sanitize(text) for name, text in entity.items()}
        found.append(each | more)
    return found


def _without_repeated_sweeps(fields):
    """Return the events without sweeps that a later one follows at once: they are one row, the last."""
    following = [*((each["kind"], each["ts_ms"]) for each in fields[1:]), (None, 0)]
    return [
        each
        for each, (kind, ts_ms) in zip(fields, following, strict=False)
        if not (each["kind"] == kind == "expire" and ts_ms >= each["ts_ms"])
    ]


def _outcome(read):
    """Return events, or where and why they cannot be read."""
    try:
        return repr(read())
    except SpoolError as error:
        return str(error)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 4000), st.integers(0, 255)), max_size=4),
    st.tuples(st.integers(0, 4000), st.integers(0, 4000)),
    st.booleans(),
)
@example([(True, 460, 1)], (0, 0), False)
def test_random_damage(pokes, sizes, cut):
    """Damaged bytes are one clear error or other values, the same for both readers, and never a crash."""
    with tempfile.TemporaryDirectory() as directory:
        path = _segment(Path(directory))
        for target, size in zip((path, path.with_suffix(NAMES_SUFFIX)), sizes, strict=True):
            data = bytearray(target.read_bytes())
            for rows, place, value in pokes:
                if rows == (target == path):
                    data[place % len(data)] = value
            target.write_bytes(data[:size] if cut else data)
        plain = _outcome(lambda: list(read_segment(path)))
        columns = _outcome(lambda: segment_table(load_segment(path)).to_pylist())
        assert plain == columns
        assert drain_is_clean(Path(directory))


def _segment(directory: Path) -> Path:
    recorder = open_recorder(directory, ManualClock())
    recorder.start(START_MS)
    recorder.quota(QuotaRecord(entity=(("user", None),), key="producer_byte_rate", value=5.5), START_MS)
    for index in range(10):
        record(recorder, client(f"app-{index}"), START_MS + index, index)
        recorder.mutation(*asked(client()), index, SimpleNamespace(strict=True), True, START_MS)
    recorder.close()
    (path,) = segment_paths(spool_directory(directory, 1), CLOSED_SUFFIX)
    return path


def drain_is_clean(directory: Path) -> bool:
    """Return whether the writer is done with the segment, whatever is in it, and its Parquet can be read."""
    spool = spool_directory(directory, 1)
    drain(spool, parquet_directory(directory))
    list(read_events(directory)) if parquet_directory(directory).exists() else None
    return segment_paths(spool, CLOSED_SUFFIX) == []


FILES = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 9), st.integers(0, 9), st.booleans()), unique=True
)


@given(FILES)
def test_superseded_against_brute_force(parts):
    """A file is superseded if and only if a compacted one of its node, other than itself, covers its range."""
    files = [
        ParquetFile.parse(
            parquet_path(
                Path("h"), node_id=node, first_seq=first, last_seq=first + length, compacted=compacted
            )
        )
        for node, first, length, compacted in parts
    ]
    current, superseded = split_superseded(files)
    assert {file.path for file in superseded} == {
        file.path for file in files if any(_covers(other, file) for other in files)
    }
    assert len(current) + len(superseded) == len(files)


def _covers(other: ParquetFile, file: ParquetFile) -> bool:
    within = other.first_seq <= file.first_seq and file.last_seq <= other.last_seq
    return other.compacted and other.node_id == file.node_id and other.path != file.path and within
