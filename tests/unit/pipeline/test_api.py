"""The functions of `tidegate.pipeline` in this process: what they return, and what they refuse."""

import pickle
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from itertools import combinations
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode
from tests.unit.kafka_log.samples import QUICK

from tidegate import pipeline
from tidegate.config.locations import location
from tidegate.config.quotas_file import parse_quotas_file
from tidegate.errors import TidegateError
from tidegate.pipeline.outcomes import Result, TablesWhenAsked
from tidegate.pipeline.results.output import saved_table

_QUOTAS = """\
version: 1
quotas:
  - user: {default: true}
    producer_byte_rate: 100KB
"""
_START = datetime.fromtimestamp(START_MS / 1000, UTC)
_CHEAP = """\
import sys
import tidegate.pipeline as pipeline
dir(pipeline)
print(sorted({"pyspark", "pandas", "pyarrow", "numpy", "numba", "rich"} & {*sys.modules}))
"""


def _write(directory, node_id):
    rng = Random(node_id)
    node = RecordingNode(node_id)
    node.start(START_MS, records=random_records(rng, at_most=8))
    random_traffic(node, rng, events=400)
    write_events(directory, node.events, rows_per_file=150)
    return directory


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A record of two nodes."""
    directory = tmp_path_factory.mktemp("record")
    for node_id in (1, 2):
        _write(directory, node_id)
    return directory


@pytest.fixture
def quotas(tmp_path):
    """A file with a plan."""
    path = tmp_path / "tight.yaml"
    path.write_text(_QUOTAS)
    return path


def _sorted(table):
    return sorted(map(repr, table.to_pylist()))


def test_the_import_loads_nothing():
    """The package is named where no job is run."""
    done = subprocess.run([sys.executable, "-c", _CHEAP], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_subpackage_hides_no_function(record):
    """`replay`, `report` and `watch` are functions, whatever of the subpackages of these names was imported."""
    import tidegate.pipeline.replay.plan
    import tidegate.pipeline.report.text
    import tidegate.pipeline.watch.node

    assert tidegate.pipeline.replay.__module__ == "tidegate.pipeline.api"
    assert tidegate.pipeline.report.__module__ == "tidegate.pipeline.api"
    assert tidegate.pipeline.watch.__module__ == "tidegate.pipeline.watching"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pipeline.nothing


def test_tables_are_those_that_are_written(record, quotas, tmp_path):
    """Every table has the columns, types and rows of the written one, whatever was asked for."""
    used = pipeline.usage(record, by_minute=True)
    replayed = pipeline.replay(
        record, quotas=quotas, loop="open", by_client=True, decisions=True, in_force=True
    )
    obeyed, smallest = pipeline.obedience(record), pipeline.limits(record, by="user")
    written = [
        pipeline.usage(record, out=tmp_path / "usage"),
        pipeline.replay(
            record, quotas=quotas, loop="open", decisions=True, in_force=True, out=tmp_path / "replay"
        ),
        pipeline.obedience(record, out=tmp_path / "obedience"),
        pipeline.limits(record, by="user", out=tmp_path / "limits"),
    ]
    for found, short, name in zip(
        (used, replayed, obeyed, smallest), written, ("usage", "replay", "obedience", "limits"), strict=True
    ):
        assert found.rows == short.rows > 0
        for table, rows in found.tables.items():
            of_file = saved_table(location(str(tmp_path / name)), table)
            assert isinstance(rows, pa.Table)
            assert rows.schema == of_file.schema == pipeline.SCHEMAS[table]
            assert _sorted(rows) == _sorted(of_file) != []
        for table, rows in short.tables.items():
            assert _sorted(rows) == _sorted(found[table])
    assert [*used.tables] == ["usage_by_client", "usage_by_minute"]
    assert [*replayed.tables] == ["replay_by_entity", "replay_by_client", "decisions"]
    assert used.groups == len(used.in_all)


def test_results_are_pickled(record, quotas):
    """With their tables, also those that are only made when they are asked for."""
    for found in (
        pipeline.usage(record),
        pipeline.replay(record, quotas=quotas, by_client=True),
        pipeline.limits(record, by="user"),
        pipeline.obedience(record),
        pipeline.recommend(record),
    ):
        copy = pickle.loads(pickle.dumps(found))
        assert dict(copy.tables) == dict(found.tables)
        assert (copy.rows, copy.missing) == (found.rows, found.missing)


def test_usage_is_grouped_and_cut(record):
    """By one column, by several, and only the groups with most bytes."""
    by_user, by_both = pipeline.usage(record, by="user"), pipeline.usage(record, by=["user", "api"])
    sums = [sum(found.in_all["requests"].to_pylist()) for found in (by_user, by_both, pipeline.usage(record))]
    assert len({*sums}) == 1
    assert by_both.in_all.column_names[:2] == ["user", "api"]
    top = pipeline.usage(record, top=1)
    largest = max(
        pipeline.usage(record).in_all.to_pylist(), key=lambda row: row["produce_bytes"] + row["fetch_bytes"]
    )
    assert top.in_all.to_pylist() == [largest]
    assert top.groups > 1
    assert pipeline.usage(record, by="topic").topics is not None


def test_usage_is_grouped_by_any_two_columns(record):
    """Both columns are those of the table, also where they are made of the same column of the record."""
    requests = sum(pipeline.usage(record).in_all["requests"].to_pylist())
    for by in combinations(pipeline.GROUPS, 2):
        found = pipeline.usage(record, by=by, with_peaks=False).in_all
        assert found.column_names[:2] == [*by]
        assert sum(found["requests"].to_pylist()) == requests


def test_several_records_are_one(tmp_path):
    """Directories of brokers are read together, and none of them twice."""
    first, second = _write(tmp_path / "a", 1), _write(tmp_path / "b", 2)
    together = pipeline.usage([first, str(second)])
    assert together.rows == pipeline.usage(first).rows + pipeline.usage(second).rows
    last = pipeline.usage([first, second], last="1h")
    assert 0 < last.rows < together.rows
    with pytest.raises(TidegateError, match="is in two of the paths"):
        pipeline.usage([first, next(first.glob("date=*"))])


def test_a_range_of_time(record):
    """From `start` on and before `end`, as a time with a zone or a text in UTC; or the last part."""
    parts = [
        pipeline.usage(record, end=_START + timedelta(hours=3)).rows,
        pipeline.usage(record, start=(_START + timedelta(hours=3)).isoformat()).rows,
    ]
    assert 0 < parts[0] < sum(parts) == pipeline.usage(record).rows
    assert pipeline.usage(record, last=timedelta(hours=2)).rows == pipeline.usage(record, last="2h").rows


def test_a_record_that_is_open(record, quotas):
    """Several jobs read the same rows, and nothing but the job itself is set then."""
    with pipeline.open_record(record, last="5h") as part:
        used = pipeline.usage(part)
        assert used.rows == part.rows == pipeline.limits(part, quotas=quotas).rows
        with pytest.raises(TidegateError, match="start cannot be set for a record that is open"):
            pipeline.usage(part, start=_START)
    assert not part.is_imported
    with pytest.raises(TidegateError, match="the record is closed") as raised:
        pipeline.usage(part)
    assert "open it again" in raised.value.hint


def test_quotas_from_a_proposal_are_replayed(record):
    """What `recommend` returns is a plan for `replay` and `limits`."""
    found = pipeline.recommend(record, force=True)
    assert found.by == "user"
    text = found.text()
    assert parse_quotas_file(text).entries == found.quotas.entries
    assert "kafka-configs" in found.text("kafka-configs")
    assert found["forecast"].schema == pipeline.SCHEMAS["forecast"]
    assert found["limits_by_entity"].num_rows
    replayed = pipeline.replay(record, quotas={"proposed": found.quotas})
    assert {*replayed.by_entity["plan"].to_pylist()} == {"proposed"}
    assert pipeline.limits(record, quotas=found.quotas).by_entity.num_rows
    with pytest.raises(TidegateError, match="form must be"):
        found.text("xml")


def test_a_report_is_returned_and_written(record, quotas, tmp_path):
    """The page is the one that the command writes, but for the time in its footer."""
    page = tmp_path / "page.html"
    html = pipeline.report(record, quotas=quotas, out=page)
    assert page.read_text() == html
    assert "<h2" in html
    assert "tight" in html
    with pytest.raises(TidegateError, match="exists"):
        pipeline.report(record, out=page)
    with pytest.raises(TidegateError, match="loop must be open or closed"):
        pipeline.report(record, loop="half")
    with pytest.raises(TidegateError, match="out must be a path on this machine"):
        pipeline.report(record, out="s3://bucket/page.html")


def test_a_parameter_that_does_not_exist_is_named(record):
    """A wrong name is Python's error, with the name that was meant."""
    message = r"'strat' \(hint: did you mean 'start'\?\)"
    for function in (pipeline.usage, pipeline.report):
        with pytest.raises(TypeError, match=message):
            function(record, strat="2026-11-22")
    with pytest.raises(TypeError, match=message), pipeline.open_record(record, strat="2026-11-22"):
        pass
    with pytest.raises(TypeError, match=r"'topp' \(hint: did you mean 'top'\?\)"):
        pipeline.usage(record, topp=3)
    with pytest.raises(TypeError, match=r"expected one of by, headroom, .*, start, end, last, progress"):
        pipeline.recommend(record, out="x")


def test_any_true_value_asks_for_a_table(record, quotas):
    """Once, such as a 2 or a text."""
    found = pipeline.replay(record, quotas=quotas, by_client="yes")
    assert [*found.tables] == ["replay_by_entity", "replay_by_client"]


def test_a_replay_is_continued(tmp_path, quotas):
    """The state that one replay leaves is where the next begins."""
    directory = _write(tmp_path / "usage", 1)
    middle = _START + timedelta(hours=4)
    options = {"quotas": quotas, "loop": "open"}
    in_all = pipeline.replay(directory, **options).by_entity
    pipeline.replay(directory, **options, end=middle, out=tmp_path / "before")
    after = pipeline.replay(directory, **options, start=middle, continue_from=tmp_path / "before").by_entity
    before = saved_table(tmp_path / "before", "replay_by_entity")
    assert saved_table(tmp_path / "before", "state").schema == pipeline.SCHEMAS["state"]
    for name in ("requests", "throttled_requests", "throttle_ms"):
        assert sum(in_all[name].to_pylist()) == sum(before[name].to_pylist()) + sum(after[name].to_pylist())


def test_a_record_is_compacted(tmp_path):
    """Its rows stay, in one file for each hour of the range, or of the record."""
    usage = tmp_path / "usage"
    _write(usage / "parquet", 1)
    in_all = pipeline.usage(usage).in_all
    part = pipeline.compact(usage, end=_START + timedelta(hours=1))
    done = pipeline.compact(str(usage))
    assert part.files_before > part.files == done.files_before > done.files
    assert (done.segments, done.damaged, done.unreadable) == (0, 0, ())
    assert _sorted(pipeline.usage(usage).in_all) == _sorted(in_all)
    for path, message in (
        (tmp_path, "no usage record in"),
        ("s3://bucket/usage", "path must be a path on this machine"),
        ("x" * 300, "as path: File name too long"),
    ):
        with pytest.raises(TidegateError, match=message):
            pipeline.compact(path)


def test_progress_is_reported_and_nothing_printed(record, quotas, capsys, monkeypatch):
    """Each step from 0 to its total; on a terminal, too, the caller alone prints."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    seen = []
    pipeline.replay(record, quotas=quotas, progress=seen.append)
    pipeline.usage(record)
    assert capsys.readouterr() == ("", "")
    steps = {step.what for step in seen}
    assert {"scanning", "reading", "replaying"} <= steps
    for what in ("scanning", "reading", "replaying"):
        done = [step.done for step in seen if step.what == what]
        assert done == [*range(len(done))]
        assert seen[-1].done == seen[-1].total


def test_warnings_are_logged_and_printed_by_commands_alone(tmp_path):
    """Python prints warnings of a logger without handlers, so it has one."""
    _write(tmp_path / "usage" / "parquet", 1)
    (tmp_path / "usage" / "spool" / "node-1").mkdir(parents=True)
    script = "import sys; from tidegate import pipeline; print(pipeline.usage(sys.argv[2]).rows > 0)"
    for start, printed in (
        (("-c", script, "usage"), ""),
        (
            ("-m", "tidegate", "usage"),
            f"skipped the rows in {tmp_path}/usage/spool: give {tmp_path}/usage to read them\n",
        ),
    ):
        command = [sys.executable, *start, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout
        assert done.stderr == printed


def test_an_imported_request_log(tmp_path):
    """A log becomes a record, of which it is not known whether clients obeyed."""
    seen = []
    found = pipeline.import_request_log([QUICK], out=tmp_path / "usage", progress=seen.append)
    assert found.requests > 0
    assert seen
    assert pipeline.usage(tmp_path / "usage").rows >= found.requests
    assert pipeline.limits(tmp_path / "usage").is_imported
    with pytest.raises(pipeline.NotRecordedError):
        pipeline.obedience(tmp_path / "usage")
    again = pipeline.import_request_log({1: QUICK}, out=str(tmp_path / "usage"))
    assert (again.requests, again.files_known) == (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": datetime(2026, 11, 22)}, "start must have a time zone"),
        ({"start": 1_700_000_000_000}, "start must be a datetime or a text"),
        ({"start": date(2026, 11, 22)}, "start must be a datetime or a text"),
        ({"start": "yesterday"}, "start must be a date and time such as"),
        ({"end": "1969-01-01"}, "end must be a time since 1970"),
        ({"start": datetime.min.replace(tzinfo=UTC)}, "start must be a time since 1970"),
        ({"start": _START, "end": _START}, "end must be later than start"),
        ({"start": _START, "last": "1h"}, "last cannot be used with start and end"),
        ({"last": "1 hour"}, "last must be a timedelta above 0"),
        ({"last": timedelta(0)}, "last must be a timedelta above 0"),
        ({"start": "2200-01-01"}, "no usage files in"),
        ({"by": "users"}, "by must be one or more of user, client_id"),
        ({"by": ()}, "by must be one or more of"),
        ({"by": ("user", "user")}, "by must be one or more of"),
        ({"by": None}, "by must be one or more of"),
        ({"by": 1}, "by must be one or more of"),
        ({"by": [["user"]]}, "by must be one or more of"),
        ({"top": 0}, "top must be a whole number"),
        ({"top": True}, "top must be a whole number"),
        ({"spark": "local[2]"}, "spark must be a SparkSession, got 'local"),
        ({"progress": "yes"}, "progress must be a function"),
        ({"out": 3}, "out must be a path or URI"),
        ({"out": ""}, "out must be a path or URI"),
        ({"out": "\ud800"}, "out must be valid Unicode"),
        ({"out": "o/\0"}, "out must be valid Unicode without a null"),
    ],
)
def test_what_cannot_be_used_is_named(record, options, message):
    """Every wrong argument is one error that names it."""
    with pytest.raises(TidegateError, match=message):
        pipeline.usage(record, **options)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (None, "paths must be a path or URI"),
        ([], "paths must be a path or URI, or several"),
        ([None], "paths must be a path or URI, got None"),
        (b"usage", "paths must be a path or URI"),
        (7, "paths must be a path or URI"),
        ("", "paths must be a path or URI"),
        ("/nowhere/usage", "nowhere"),
        ("x" * 300, "as paths: File name too long"),
        ("\ud800", "paths must be valid Unicode"),
        ("x\0", "paths must be valid Unicode without a null"),
        ("s3://key:secret@bucket/usage", "must not contain credentials"),
    ],
)
def test_paths_that_cannot_be_read_are_named(paths, message):
    """Every function opens its paths in the same way."""
    with pytest.raises(TidegateError, match=message):
        pipeline.usage(paths)
    with pytest.raises(TidegateError, match=message), pipeline.open_record(paths):
        pass


def test_replays_that_make_no_sense_are_refused(record, quotas, tmp_path):
    """Before a row is read."""
    for options, message in (
        ({}, "no quotas to replay"),
        ({"quotas": quotas, "loop": "half"}, "loop must be open or closed"),
        ({"quotas": quotas, "decisions": True}, "decisions need loop='open'"),
        ({"quotas": quotas, "continue_from": tmp_path}, "continue_from needs quotas and loop='open'"),
        ({"in_force": True, "continue_from": tmp_path}, "continue_from needs quotas"),
        ({"quotas": quotas, "loop": "open", "continue_from": tmp_path}, "no complete table 'state'"),
        ({"quotas": [quotas, quotas]}, "two plans are called 'tight'"),
        ({"quotas": {"in force": quotas}}, "no plan can have the name"),
        ({"quotas": {"1": quotas, 1: quotas}}, "the name of a plan must be a text, not empty, got 1"),
        ({"quotas": {None: quotas}}, "the name of a plan must be a text, not empty, got None"),
        ({"quotas": {"": quotas}}, "the name of a plan must be a text, not empty, got ''"),
        ({"quotas": tmp_path / "none.yaml"}, "none.yaml"),
        ({"quotas": 3}, "quotas must be a path or URI"),
        ({"quotas": "s3://bucket/quotas.yaml"}, "quotas must be a path on this machine"),
        ({"quotas": quotas, "out": quotas}, "is a file, expected a directory"),
        (
            {"quotas": quotas, "loop": "open", "continue_from": "x" * 300},
            "as continue_from: File name too long",
        ),
    ):
        with pytest.raises(TidegateError, match=message):
            pipeline.replay(record, **options)
    for options, message in (
        ({"by": "listener"}, "by must be both, user"),
        ({"by": ["user"]}, "by must be both, user"),
        ({"by": "user", "quotas": quotas}, "by cannot be used with quotas"),
        ({"tolerance": 0.01}, "tolerance must be"),
    ):
        with pytest.raises(TidegateError, match=message):
            pipeline.limits(record, **options)
    with pytest.raises(KeyError, match="usage_by_client"):
        _ = pipeline.usage(record).by_minute


def test_a_table_that_was_not_returned_has_a_hint(record, quotas, tmp_path):
    """The parameter that returns it, or where it was written."""
    replayed = pipeline.replay(record, quotas=quotas, loop="open")
    options = {"quotas": quotas, "loop": "open", "decisions": True}
    written = pipeline.replay(record, **options, out=tmp_path / "replay")
    for found, name, hint in (
        (pipeline.usage(record, top=1), "by_minute", "give by_minute=True"),
        (
            pipeline.usage(record, by="user", out=tmp_path / "u"),
            "by_minute",
            tmp_path / "u/usage_by_user_by_minute",
        ),
        (replayed, "by_client", "give by_client=True"),
        (replayed, "decisions", "give decisions=True"),
        (written, "by_client", tmp_path / "replay/replay_by_client"),
        (written, "decisions", tmp_path / "replay/decisions"),
        (pipeline.obedience(record, out=tmp_path / "o"), "by_client", tmp_path / "o/obedience_by_client"),
    ):
        with pytest.raises(TidegateError, match=r"^'[a-z_]*' is not among the tables [a-z_]*$") as caught:
            getattr(found, name)
        assert caught.value.hint == (hint if isinstance(hint, str) else f"read it from {str(hint)!r}")
        assert isinstance(hint, str) or pq.read_table(hint).num_rows
    with pytest.raises(KeyError, match=r"^'nothing' is not among") as caught:
        _ = replayed["nothing"]
    assert caught.value.hint is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": []}, "by must be both, user"),
        ({"headroom": 0.5}, "headroom must be"),
        ({"budgets": "x"}, "budgets must be a mapping"),
        ({"protect": None}, "protect must be pairs"),
    ],
)
def test_proposals_that_cannot_be_made_are_refused(record, options, message):
    """`test_wanted.py` has all wrong budgets and names."""
    with pytest.raises(TidegateError, match=message):
        pipeline.recommend(record, force=True, **options)


def test_the_pairs_to_protect_may_be_lists(record):
    """Pairs from JSON or YAML protect as tuples do."""
    user = pipeline.usage(record, by="user", top=1).in_all["user"][0].as_py()
    texts = {
        pipeline.recommend(record, force=True, protect=[kind(("user", user))]).text()
        for kind in (list, tuple)
    }
    assert len(texts) == 1
    assert user in texts.pop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"paths": {}}, "paths must name a log"),
        ({"paths": {"one": "x.log"}}, "a node id must be a whole number"),
        ({"paths": "/nowhere/x.log"}, "no request log at"),
        ({"paths": "s3://bucket/x.log"}, "paths must be a path on this machine"),
        ({"time_zone": "Mars"}, "unknown time zone"),
        ({"processes": 0}, "processes must be"),
        ({"node_id": []}, "a node id must be a whole number"),
        ({"in_force": "/nowhere.yaml"}, "nowhere"),
        ({"start": datetime(2026, 1, 1)}, "start must have a time zone"),
    ],
)
def test_imports_that_cannot_be_done_are_refused(tmp_path, options, message):
    """With the argument, in one sentence."""
    log = tmp_path / "kafka-request.log"
    log.write_text("")
    with pytest.raises(TidegateError, match=message):
        pipeline.import_request_log(**{"paths": log, "out": tmp_path / "usage", **options})


def test_tables_are_not_written_into_the_record(tmp_path, quotas):
    """Its rows would be those of the tables, too."""
    directory = _write(tmp_path / "usage", 1)
    (tmp_path / "same").symlink_to(directory)
    rows = pipeline.usage(directory).rows
    for paths, out in (
        (directory, directory / "out"),
        ([tmp_path / "same"], str(directory / "date=2026-11-22")),
        (directory, tmp_path / "same"),
        (next(directory.glob("date=*/hour=*")), directory / "out"),
    ):
        for overwrite in (False, True):
            with pytest.raises(
                TidegateError, match=r"^cannot write to '.*': it is in the usage record '.*'$"
            ):
                pipeline.usage(paths, out=out, overwrite=overwrite)
    with (
        pipeline.open_record(directory) as record,
        pytest.raises(TidegateError, match="it is in the usage record"),
    ):
        pipeline.replay(record, quotas=quotas, out=directory / "out")
    with pytest.raises(TidegateError, match="it is in the usage record 's3://b/usage'"):
        pipeline.usage("s3://b/usage", out="s3://b/usage/parquet/out")
    assert (
        pipeline.usage(directory, out=tmp_path / "usage-out").rows == rows == pipeline.usage(directory).rows
    )
    beside = _write(tmp_path / "more" / "parquet", 1).parent
    with pytest.raises(TidegateError, match="it is in the usage record"):
        pipeline.usage(beside, out=beside / "parquet" / "out")
    assert pipeline.usage(beside, out=beside / "out").rows == rows == pipeline.usage(beside).rows


def test_a_directory_of_records_is_imported_if_one_is(tmp_path):
    """Clients of a request log are in no table of early requests."""
    _write(tmp_path / "usage" / "a", 1)
    pipeline.import_request_log([QUICK], out=tmp_path / "usage" / "b", node_id=2)
    with pytest.raises(pipeline.NotRecordedError):
        pipeline.obedience(tmp_path / "usage")


def test_a_table_is_made_once_when_it_is_named():
    """To look up whether there is a table does not make it."""
    made = []
    tables = TablesWhenAsked({"a": lambda: made.append(1) or pa.table({})})
    result = Result(tables=tables, rows=0)
    assert result["a"].num_columns == 0
    assert len(made) == 1


def test_written_tables_are_parquet(record, tmp_path):
    """The fixed path of a table is what any reader takes."""
    pipeline.usage(record, out=str(tmp_path / "out"))
    assert pq.read_table(tmp_path / "out" / "usage_by_client").num_rows
