"""Which hours the jobs read."""

import argparse

import pytest
from tests.replaying.files import write_events
from tests.replaying.node import RecordingNode

from tidegate.cli.job_options import add_job_options, location_type, opened, path_type
from tidegate.cli.main import main
from tidegate.errors import TidegateError
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.quota import QuotaRecord

HOUR_MS = 3_600_000
START_MS = 1_700_002_800_000  # 2023-11-14 23:00 UTC


def options(directory, *arguments):
    """Return the options of a job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    add_job_options(parser)
    args = parser.parse_args(["", *arguments])
    args.directory = directory
    return args


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2023-11-14T23:00", START_MS),
        ("2023-11-14T23:00Z", START_MS),
        ("2023-11-15T01:00:00+02:00", START_MS),
        ("2023-11-14 23", START_MS),
        ("2023-11-15", START_MS + HOUR_MS),
        ("1970-01-01", 0),
        ("2023-11-14T23:30:15Z", START_MS + 1_815_000),
        ("2023-11-14T23:00:00.001", START_MS + 1),
    ],
)
def test_times_are_utc(tmp_path, text, time_ms):
    """Times are in UTC unless they have an offset; a date is its beginning."""
    assert options(tmp_path, "--from", text).from_ms == options(tmp_path, "--to", text).to_ms == time_ms


@pytest.mark.parametrize(
    "text",
    ["", "now", "14", "2023-11-14T23:00:00.0005", "1969-12-31", "0001-01-01T00:00+14:00"],
)
def test_times_that_cannot_be_read_are_refused(tmp_path, capsys, text):
    """Refuse what is no time since 1970 in whole milliseconds."""
    with pytest.raises(SystemExit):
        options(tmp_path, "--from", text)
    assert (
        "argument --from: expected a date and time such as 2026-11-22, 2026-11-22T14:00 or 2026-11-22T14:05:30Z, "
        f"got {text!r}" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("text", "last_ms"), [("90s", 90_000), ("15m", 900_000), ("6h", 21_600_000), ("2d", 172_800_000)]
)
def test_the_last_part_is_given_with_a_unit(tmp_path, text, last_ms):
    """Read seconds, minutes, hours and days."""
    assert options(tmp_path, "--last", text).last_ms == last_ms


@pytest.mark.parametrize("text", ["", "15", "0m", "-5m", "1.5h", "15 m", "15min", "99999999s", "\u0661m"])
def test_lengths_of_time_that_cannot_be_read_are_refused(tmp_path, capsys, text):
    """Refuse what has no unit or is no whole number above 0."""
    with pytest.raises(SystemExit):
        options(tmp_path, f"--last={text}")
    assert "argument --last: expected a number with a unit s, m, h or d" in capsys.readouterr().err


def test_a_uri_with_a_secret_is_refused_without_repeating_it(tmp_path, capsys):
    """Neither in the reason nor in the hint."""
    with pytest.raises(SystemExit):
        options(tmp_path, "--out", "s3://AKIA:s3cret@bucket/out")
    said = capsys.readouterr().err
    assert "argument --out: a URI must not contain credentials" in said
    assert "s3cret" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "delta",
            "Delta Lake has no release for Spark 4.3: 4.4.0 is for Spark 4.0 to 4.2 (hint: write Parquet",
        ),
        ("iceberg", "Apache Iceberg has no release for Spark 4.3"),
        ("csv", "expected parquet, delta or iceberg, got 'csv'"),
    ],
)
def test_formats_of_tables_that_cannot_be_written_are_refused(tmp_path, capsys, text, said):
    """Each by name, and with the release that is missing."""
    with pytest.raises(SystemExit) as caught:
        options(tmp_path, "--format", text)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
    assert options(tmp_path, "--format", "parquet").format == "parquet"


def test_only_the_hours_in_between_are_read(tmp_path):
    """From the first on, and before the last; files of others are not opened."""
    write_hours(tmp_path, hours=4)
    (tmp_path / "date=2023-11-14" / "hour=23" / "broken.parquet").write_bytes(b"x")
    found = {
        arguments: rows_in(tmp_path, *arguments)
        for arguments in (
            ("--from", "2023-11-15"),
            ("--from", "2023-11-15", "--to", "2023-11-15T01:00"),
            ("--from", "2023-11-15T01:00", "--to", "2024-01-01"),
        )
    }
    assert list(found.values()) == [3, 1, 2]


def test_an_hour_alone_is_decided_as_recorded(tmp_path):
    """As its first rows state what the node knew by then."""
    node = RecordingNode()
    node.start(
        START_MS, records=(QuotaRecord(entity=(("user", "alice"),), key="producer_byte_rate", value=1e6),)
    )
    for second in range(3000, 4200):
        if second == 3600:
            node.snapshot(START_MS + HOUR_MS)
        node.produce("alice", "app", 1_000_000 + second * 100, START_MS + second * 1000)
    write_events(tmp_path, node.events)
    with opened(options(tmp_path, "--from", "2023-11-15")) as files:
        (row,) = [
            r
            for r in jobs_here(files).replay([in_force_plan()], out=None).entities
            if r["quota_type"] == "Produce"
        ]
    assert (row["requests"], row["different_decisions"]) == (600, 0)
    assert row["throttled_requests"] > 500


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--from", "2023-11-15", "--to", "2023-11-15"), "--to must be later than --from"),
        (("--from", "2024-11-15"), "no usage files in .* in these hours"),
        (
            ("--from", "2023-11-14T23:00:00.001", "--to", "2023-11-14T23:30"),
            "no rows in .* in this range of time",
        ),
        (("--last", "5m", "--to", "2023-11-15"), "--last cannot be used with --from and --to"),
    ],
)
def test_hours_that_cannot_be_read_are_refused(tmp_path, arguments, reason):
    """None, or none of the record: the hint says which hours that has."""
    write_hours(tmp_path, hours=2)
    with pytest.raises(TidegateError, match=reason) as caught, opened(options(tmp_path, *arguments)):
        pass
    if "no usage files" in reason:
        assert (
            caught.value.hint
            == "the record contains date=2023-11-14/hour=23 to date=2023-11-15/hour=00, in UTC"
        )


def test_rows_are_cut_to_the_millisecond(tmp_path):
    """Read the rows from --from on and before --to, in the middle of hours and of files."""
    node = RecordingNode()
    for at_ms in range(0, 2 * HOUR_MS, 60_000):
        node.produce("alice", "app", 1000, START_MS + at_ms)
    write_events(tmp_path, node.events)
    every = rows_in(tmp_path)
    assert rows_in(tmp_path, "--from", "2023-11-14T23:59:00", "--to", "2023-11-15T00:02:00") == 3
    assert rows_in(tmp_path, "--from", "2023-11-14T23:59:00.001", "--to", "2023-11-15T00:02:00.001") == 3
    assert rows_in(tmp_path, "--from", "2023-11-14T23:59:00.001", "--to", "2023-11-15T00:02:00") == 2
    assert rows_in(tmp_path, "--last", "5m") == 5
    assert rows_in(tmp_path, "--last", "9d") == every
    with opened(options(tmp_path, "--last", "5m")) as files:
        assert (files.from_ms, files.to_ms) == (
            START_MS + 2 * HOUR_MS - 360_000 + 1,
            START_MS + 2 * HOUR_MS - 60_000 + 1,
        )
        assert sum(row["requests"] for row in jobs_here(files).usage(out=None, top=9).top) == 5


def test_files_of_no_hour_are_cut_too(tmp_path):
    """Look into files that lie in the directory of no hour: they can have rows of any time."""
    write_hours(tmp_path / "x", hours=1)
    (file,) = tmp_path.rglob("*.parquet")
    file.rename(tmp_path / "mine.parquet")
    assert rows_in(tmp_path) == rows_in(tmp_path, "--from", "2023-11-14T23:00") == 1
    with pytest.raises(TidegateError, match=r"no rows in .* in this range of time"):
        rows_in(tmp_path, "--from", "2023-11-15")


def write_hours(directory, *, hours):
    """Write a row in each hour."""
    node = RecordingNode()
    for hour in range(hours):
        node.expire(START_MS + hour * HOUR_MS)
        write_events(directory, node.events[hour : hour + 1])


def rows_in(directory, *arguments):
    """Return how many rows a job is given."""
    with opened(options(directory, *arguments)) as files:
        return files.rows


@pytest.mark.parametrize(
    "arguments",
    [
        ["watch", "s3://bucket/usage"],
        ["watch", "usage", "--checkpoint", "gs://bucket/watched"],
        ["watch", "usage", "--plan", "hdfs://head/plan.yaml"],
        ["compact", "abfs://container@account/usage"],
        ["import", "kafka.log", "--out", "s3://bucket/usage"],
        ["report", "usage", "--out", "s3://bucket/report.html"],
        ["limits", "usage", "--quotas", "webhdfs://head/plan.yaml"],
        ["replay", "usage", "--quotas", "s3://bucket/plan.yaml"],
    ],
)
def test_where_only_a_path_can_be_a_uri_is_refused(arguments, capsys):
    """It would be a path of that name; `watch` says what to do instead."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert f"expected a path on this machine, got {arguments[-1]!r}" in said
    is_watched = arguments[:2] == ["watch", arguments[-1]]
    assert ("run watch on the machine of the broker" in said) == is_watched


def test_a_file_uri_is_a_path(tmp_path):
    """With its escapes undone."""
    (tmp_path / "a b").mkdir()
    uri = f"file://{tmp_path}/a%20b"
    assert path_type(uri) == location_type(uri) == tmp_path / "a b"
    write_hours(tmp_path / "a b", hours=1)
    assert rows_in(location_type(uri)) == rows_in(tmp_path / "a b") == 1
