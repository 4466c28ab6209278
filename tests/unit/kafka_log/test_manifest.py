"""An import of a range of time: the requests in it, the quotas set before it, and no other range afterwards."""

import gzip
import json
from pathlib import Path
from random import Random

import pytest
from tests.unit.kafka_log.samples import QUICK, THROTTLED, line
from tests.unit.kafka_log.test_importing import events, imported, requests

from tidegate.cli.main import main
from tidegate.config.quotas_file import parse_quotas_file
from tidegate.errors import ConfigError
from tidegate.kafka_log.log_files import LogFileError
from tidegate.kafka_log.manifest import TimeRange, time_text

ENTITY = [{"entityType": "client-id", "entityName": "app"}]


def altered(time: str, value: float | None) -> bytes:
    """Return the line of an AlterClientQuotas; None removes the quota."""
    op = {"key": "producer_byte_rate", "value": value or 0.0, "remove": value is None}
    request = {"entries": [{"entity": ENTITY, "ops": [op]}], "validateOnly": False}
    answer = {"errorCode": 0, "errorMessage": None, "entity": ENTITY}
    response = {"throttleTimeMs": 0, "entries": [answer]}
    return line(time, api_key=49, api_version=1, request=request, response=response)


@pytest.mark.parametrize("path", [QUICK, THROTTLED], ids=["quick", "throttled"])
def test_the_requests_of_a_range_are_those_of_the_whole(tmp_path: Path, path: Path) -> None:
    """Row by row, for random ranges; what is left out is counted."""
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    imported(tmp_path / "whole", path)
    whole = requests(tmp_path / "whole")
    times = [row["ts_ms"] for row in whole]
    for number in range(3):
        from_ms, to_ms = sorted(rng.sample(sorted(set(times)), 2))
        wanted = TimeRange(from_ms=from_ms, to_ms=to_ms)
        summary = imported(tmp_path / str(number), path, wanted=wanted)
        found = requests(tmp_path / str(number))
        names = [name for name in found[0] if name not in ("seq", "fetch_bytes", "lag_bytes")]
        expected = [row for row in whole if from_ms <= row["ts_ms"] < to_ms]
        # Sizes of throttled fetches and of lags are estimated from the other requests of the range.
        assert [[row[name] for name in names] for row in found] == [
            [row[name] for name in names] for row in expected
        ]
        assert (summary.requests, summary.outside) == (len(found), len(whole) - len(found))
        kinds = [event["kind"] for event in events(tmp_path / str(number))]
        assert kinds[:2] == ["start", "gap"]
        assert kinds.count("start") == 1


def test_a_record_starts_at_a_request_that_its_controller_decided_earlier(tmp_path: Path) -> None:
    """The first row in the range is a mutation, which moves to an earlier time than that of its own line."""
    imported(tmp_path, QUICK, wanted=TimeRange(from_ms=1_795_254_184_434, to_ms=1_795_254_184_485))
    assert [event["kind"] for event in events(tmp_path)][:3] == ["start", "gap", "request"]


def test_quotas_set_before_the_range_are_in_force_at_its_beginning(tmp_path: Path) -> None:
    """The last value of each, in place of that of `--in-force`; a removed quota stays removed."""
    log = tmp_path / "request.log"
    log.write_bytes(
        line("2026-11-21 08:00:00,000")
        + altered("2026-11-21 08:00:01,000", 10.0)
        + altered("2026-11-21 08:00:02,000", 20.0)
        + line("2026-11-21 09:30:00,000")
        + altered("2026-11-21 09:30:01,000", 30.0)
        + line("2026-11-21 09:30:02,000")
        + altered("2026-11-21 10:00:00,000", 40.0)
    )
    in_force = parse_quotas_file("quotas: [{client-id: {name: app}, producer_byte_rate: 5}]")
    nine_thirty_ms = 1_795_253_400_000
    wanted = TimeRange(from_ms=nine_thirty_ms - 1000, to_ms=nine_thirty_ms + 1_800_000 - 1000)
    assert str(wanted) == "--from 2026-11-21T09:29:59Z --to 2026-11-21T09:59:59Z"
    summary = imported(tmp_path / "out", log, in_force=in_force, wanted=wanted)
    found = [(event["kind"], event["quota_value"]) for event in events(tmp_path / "out")]
    assert found == [
        ("start", None), ("gap", None), ("quota", 5.0), ("quota", 20.0), ("request", None),
        ("request", None), ("quota", 30.0), ("request", None),
    ]  # fmt: skip
    assert (summary.requests, summary.quotas, summary.outside) == (3, 1, 4)


def test_a_record_keeps_its_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another one is refused with the range to give; the same one takes the lines that a log has grown by."""
    log, out = tmp_path / "request.log", str(tmp_path / "out")
    log.write_bytes(line("2026-11-21 09:42:57,000") + line("2026-11-21 09:42:58,000"))
    from_option = ["--from", "2026-11-21T09:42:57.500"]
    assert main(["import", str(log), "--out", out, *from_option]) == 0
    assert "left out 1 request outside the range of time" in capsys.readouterr().out
    log.write_bytes(log.read_bytes() + line("2026-11-21 09:42:59,000"))
    for others in ([], ["--from", "2026-11-21"], ["--to", "2026-11-22"], ["--last", "1s"]):
        assert main(["import", str(log), "--out", out, *others]) == 2
        assert (
            "hint: give --from 2026-11-21T09:42:57.500Z, or give --out another directory"
            in capsys.readouterr().err
        )
    assert main(["import", str(log), "--out", out, *from_option]) == 0
    assert len(requests(tmp_path / "out")) == 2
    whole = str(tmp_path / "whole")
    assert main(["import", str(log), "--out", whole]) == 0
    assert main(["import", str(log), "--out", whole, *from_option]) == 2
    assert "was imported with no range of time" in capsys.readouterr().err


def test_the_last_part_of_the_logs(tmp_path: Path) -> None:
    """Up to the newest request of all logs, and the range is kept as a time."""
    log = tmp_path / "request.log"
    log.write_bytes(b"".join(line(f"2026-11-21 09:42:{second:02},000") for second in range(60)))
    assert main(["import", f"1={log}", f"2={log}", "--out", str(tmp_path / "out"), "--last", "15s"]) == 0
    assert len(requests(tmp_path / "out")) == 30
    manifest = json.loads((tmp_path / "out" / "import.json").read_text())
    assert (time_text(manifest["from_ms"]), manifest["to_ms"]) == ("2026-11-21T09:42:43.996Z", None)


def test_a_last_part_that_is_longer_than_all_time_is_no_range(tmp_path: Path) -> None:
    """A later import needs no range then."""
    log, out = tmp_path / "request.log", str(tmp_path / "out")
    log.write_bytes(line("2026-11-21 09:42:57,000"))
    assert main(["import", str(log), "--out", out, "--last", "999999d"]) == 0
    log.write_bytes(log.read_bytes() + line("2026-11-21 09:42:58,000"))
    assert main(["import", str(log), "--out", out]) == 0
    assert len(requests(tmp_path / "out")) == 2


@pytest.mark.parametrize("value", ["x", 1.5, [1]])
def test_a_manifest_with_an_impossible_range_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: object
) -> None:
    """One sentence and a hint, as for any damaged manifest."""
    log, out = tmp_path / "request.log", tmp_path / "out"
    log.write_bytes(line())
    assert main(["import", str(log), "--out", str(out)]) == 0
    manifest = json.loads((out / "import.json").read_text())
    (out / "import.json").write_text(json.dumps({**manifest, "to_ms": value}))
    assert main(["import", str(log), "--out", str(out)]) == 2
    assert (
        f"is not a valid import manifest: to_ms is {value!r}, expected a time in ms"
        in capsys.readouterr().err
    )


def test_no_request_in_the_range_imports_nothing(tmp_path: Path) -> None:
    """The error names the range of the logs; the directory can be used with another range."""
    with pytest.raises(LogFileError, match="no request in the range --to 2020-01-01T00:00:00Z") as raised:
        imported(tmp_path / "out", QUICK, wanted=TimeRange(to_ms=1_577_836_800_000))
    assert "the logs have requests from 2026-11-2" in str(raised.value.hint)
    assert not list((tmp_path / "out").rglob("*.parquet"))
    assert imported(tmp_path / "out", QUICK).requests == 2702


def test_a_node_that_comes_into_the_range_later_begins_with_a_start(tmp_path: Path) -> None:
    """A log that had nothing of the range at first, and has grown into it."""
    log = tmp_path / "request.log"
    log.write_bytes(line("2026-11-21 09:42:57,000"))
    (tmp_path / "other.log").write_bytes(line("2026-11-21 10:30:00,000"))
    logs = (f"1={log}", f"2={tmp_path / 'other.log'}")
    command = ["import", *logs, "--out", str(tmp_path / "out"), "--from", "2026-11-21T10:00"]
    assert main(command) == 0
    log.write_bytes(log.read_bytes() + line("2026-11-21 10:00:01,000"))
    assert main(command) == 0
    found = [(event["node_id"], event["kind"]) for event in events(tmp_path / "out")]
    kinds = ("start", "gap", "request")
    assert found == [(node_id, kind) for node_id in (1, 2) for kind in kinds]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--from", "2026-11-22", "--to", "2026-11-22"], "--to must be later than --from"),
        (["--last", "1m", "--to", "2026-11-22"], "--last cannot be used with --from and --to"),
    ],
)
def test_ranges_that_contradict_themselves_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], error: str
) -> None:
    """Before anything is read or written."""
    assert main(["import", str(QUICK), "--out", str(tmp_path / "out"), *options]) == 2
    assert error in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_rows_put_aside_are_of_the_range_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours outside the range are not written to disk at all."""
    from tidegate.kafka_log import importing

    monkeypatch.setattr(importing, "HELD_ROWS", 1)
    lines = gzip.decompress(QUICK.read_bytes()).splitlines(keepends=True)
    log = tmp_path / "request.log"
    log.write_bytes(line("2020-01-01 00:00:00,000") + b"".join(lines))
    summary = imported(tmp_path / "out", log, wanted=TimeRange(to_ms=1_600_000_000_000))
    assert (summary.requests, summary.outside) == (1, 2702)
    with pytest.raises(ConfigError, match="which excludes an import of all requests"):
        imported(tmp_path / "out", log)
