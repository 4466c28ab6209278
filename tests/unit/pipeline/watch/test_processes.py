"""A watch of the processes of one broker shows one node, whose rows it takes in the order of time."""

import shutil
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from tests.unit.pipeline.read.test_processes import BROKER, PROCESSES, QUOTAS, recorded, split
from tests.unit.pipeline.watch.test_here import WINDOW_MS, by_name, replayed, write_events

from tidegate.config.quotas_file import parse_quotas_file
from tidegate.in_slices import run_at_once
from tidegate.pipeline.plan_arguments import plans_of
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.pipeline.watch.arrivals import Arrivals
from tidegate.pipeline.watch.checkpoint import Checkpoint
from tidegate.pipeline.watch.totals import Totals
from tidegate.pipeline.watching import WatchHere
from tidegate.usage.convert import compact
from tidegate.usage.process_nodes import broker_of_node, node_of_process
from tidegate.usage.segment import OPEN_SUFFIX, Header, encode_header, segment_path

ROWS = 40
EVENTS = recorded()
PARTS = split(EVENTS)


def plans():
    """Return a plan that throttles, and the quotas in force."""
    return [*plans_of({"tight": parse_quotas_file(QUOTAS)}, is_closed=False), in_force_plan()]


@pytest.fixture
def source(tmp_path) -> Path:
    """Return a record of all processes, from which files are copied."""
    for part in PARTS:
        write_events(tmp_path / "source" / "parquet", part, rows_per_file=ROWS)
    return tmp_path / "source"


def files_of(source: Path, *processes: int) -> list[Path]:
    """Return the files of some processes, in the order of their rows."""
    names = [f"node-{node_of_process(BROKER, process)}-*" for process in processes]
    found = [path for name in names for path in (source / "parquet").rglob(name)]
    return sorted((path.relative_to(source) for path in found), key=lambda path: path.name)


def arrive(source: Path, record: Path, *paths: Path) -> None:
    """Bring files to a record."""
    for path in paths:
        (record / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / path, record / path)


def make_spools(record: Path, *processes: int) -> None:
    """Make empty spools of some processes."""
    for process in processes:
        (record / "spool" / f"node-{node_of_process(BROKER, process)}").mkdir(parents=True, exist_ok=True)


def open_segment(record: Path, process: int, opened_ms: int) -> Path:
    """Begin a segment in the spool of a process; its first row is of this time."""
    make_spools(record, process)
    node_id = node_of_process(BROKER, process)
    path = segment_path(record / "spool" / f"node-{node_id}", 10**9, OPEN_SUFFIX)
    path.write_bytes(encode_header(Header(node_id=node_id, first_seq=10**9, opened_ms=opened_ms)))
    return path


def finish(watch: WatchHere) -> None:
    """Read all rows that exist."""
    while watch.step():
        pass


def assert_whole(watch: WatchHere, record: Path) -> None:
    """Compare all sums with those of `replay` and `usage`, which show one node, the broker."""
    entities, usage = replayed(record, plans())
    totals = watch.totals
    assert totals.late_events == 0
    assert totals.events + sum(totals.waiting.values()) == len(EVENTS)
    assert by_name(totals.in_all().entities) == by_name(entities)
    assert by_name(totals.in_all().clients) == by_name(usage)
    assert [*totals.nodes] == [BROKER]


def test_files_of_processes_may_arrive_in_any_order(source, tmp_path):
    """The sums are those of a replay: rows wait for earlier rows of other processes."""
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    rng, record = Random(seed), tmp_path / "usage"
    files = files_of(source, *range(1, PROCESSES + 1))
    record.mkdir()
    watch = WatchHere(record, plans(), window_ms=WINDOW_MS, from_ms=0, lateness_s=3600)
    for path in rng.sample(files, len(files)):
        arrive(source, record, path)
        watch.step()
    make_spools(record, *range(1, PROCESSES + 1))  # nothing is still to come
    finish(watch)
    assert_whole(watch, record)


def test_files_of_one_process_arrive_after_all_others(source, tmp_path):
    """While rows of a process are in its spool, those of the others wait, from the time of its first row on."""
    record = tmp_path / "usage"
    make_spools(record, 1, 2, 3)
    middle_ms = EVENTS[len(EVENTS) // 2]["ts_ms"]
    earlier = [path for path in files_of(source, 2) if first_ms(source / path) < middle_ms]
    segment = open_segment(record, 2, first_ms(source / files_of(source, 2)[len(earlier)]))
    watch = WatchHere(record, plans(), window_ms=WINDOW_MS, from_ms=0)
    arrive(source, record, *files_of(source, 1, 3), *earlier)
    finish(watch)
    taken = watch.totals.events
    assert 0 < taken < len(EVENTS) * 0.7
    assert watch.totals.last_ts_ms < first_ms(source / files_of(source, 2)[len(earlier)])
    arrive(source, record, *files_of(source, 2)[len(earlier) :])
    segment.unlink()
    finish(watch)
    assert_whole(watch, record)


def first_ms(path: Path) -> int:
    """Return the time of the first row of a file."""
    return min(pq.read_table(path, columns=["ts_ms"], partitioning=None)["ts_ms"].to_pylist())


def test_an_idle_process_delays_nothing(source, tmp_path):
    """A process whose spool is empty has no rows to come; one without files may be new."""
    record = tmp_path / "usage"
    make_spools(record, 1, 2, 3, 4)
    arrive(source, record, *files_of(source, 1, 2, 3))
    watch = WatchHere(record, plans(), window_ms=WINDOW_MS, from_ms=0)
    finish(watch)
    assert_whole(watch, record)


@pytest.mark.parametrize("missing", [(), (0, 3)])
def test_what_a_process_brings_too_late_is_counted_and_named(source, tmp_path, missing):
    """Its rows before the last one taken are left out, once, also when they come again in a compacted file."""
    record, checkpoint = tmp_path / "usage", tmp_path / "watched"
    late = [files_of(source, 2)[place] for place in missing] or files_of(source, 2)
    arrive(source, record, *(path for path in files_of(source, 1, 2, 3) if path not in late))
    options = {"window_ms": WINDOW_MS, "from_ms": 0, "lateness_s": 0}

    def go_on() -> WatchHere:
        with Checkpoint(checkpoint) as held:
            watch = WatchHere(record, plans(), checkpoint=held, **options)
            finish(watch)
            return watch

    before = go_on().totals
    assert before.late_events == 0
    arrive(source, record, *late)
    after = go_on().totals
    late_rows, later_rows = (
        sum(rows_of(source / path, before.last_ts_ms, is_later=is_later) for path in late)
        for is_later in (False, True)
    )
    assert after.late_events == late_rows > 0
    assert {Path(path).name for path in after.late_files} <= {path.name for path in late}
    assert after.events == before.events + later_rows
    node_id = node_of_process(BROKER, 2)
    run_at_once(compact(record / "parquet", node_id=node_id, now_ms=2**62))
    again = go_on().totals
    assert (again.late_events, again.events) == (late_rows, after.events)


@pytest.mark.parametrize("is_split", [True, False], ids=["processes", "one process"])
def test_rows_that_become_late_while_others_are_taken_are_counted(tmp_path, is_split):
    """On Spark, a file may arrive after a batch was chosen, and before late rows are looked for at its end."""
    record = tmp_path / "usage"
    events = PARTS[1] if is_split else EVENTS
    write_events(record / "parquet", events, rows_per_file=len(events))
    node_id, arrivals = events[0]["node_id"], Arrivals(record, from_ms=0)
    totals = Totals(window_ms=WINDOW_MS)
    seqs, times = ([event[name] for event in events] for name in ("seq", "ts_ms"))

    def take(first: int, last: int) -> None:
        """Add a batch of rows that are not in the file."""
        if is_split:
            totals.before_ms[BROKER] = times[last] + 1
        else:
            totals.missing.setdefault(node_id, []).append((seqs[first], seqs[last]))
        totals.nodes[broker_of_node(node_id)] = (seqs[last], times[last])

    middle, last = len(events) // 2, len(events) - 1
    take(0, middle)
    totals.find_late(arrivals)
    assert totals.late_events == middle + 1
    take(middle + 1, last)
    for _ in range(2):
        totals.find_late(arrivals)
        assert totals.late_events == sum(totals.late_files.values()) == len(events)


def rows_of(path: Path, last_ms: int, *, is_later: bool) -> int:
    """Return the number of rows of a file up to a time, or after it."""
    times = pq.read_table(path, columns=["ts_ms"], partitioning=None)["ts_ms"].to_pylist()
    return sum((time > last_ms) == is_later for time in times)


def test_rows_wait_for_a_process_no_longer_than_the_lateness(source, tmp_path):
    """A process whose rows stay in its spool does not stop the others for ever."""
    record = tmp_path / "usage"
    arrive(source, record, *files_of(source, 1, 3))
    open_segment(record, 2, EVENTS[0]["ts_ms"])
    make_spools(record, 1, 3)
    patient = WatchHere(record, plans(), window_ms=WINDOW_MS, from_ms=0)
    finish(patient)
    assert patient.totals.events == 0
    hasty = WatchHere(record, plans(), window_ms=WINDOW_MS, from_ms=0, lateness_s=1e-6)
    finish(hasty)
    assert hasty.totals.events > 0
