"""Retention against its definition: whatever was appended, restarted or damaged, exactly what is too old goes."""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.logs import NOW_MS, append, batch, expire, new_log

from tidegate.storage.log.partition_log import PartitionLog
from tidegate.wire.batch import batches

RETENTION_MS = 1000
NO_TIME = -1

times = st.one_of(st.integers(NOW_MS - 3000, NOW_MS + 3000), st.just(NO_TIME))
appended = st.lists(st.tuples(times, st.integers(0, 400)), min_size=1, max_size=60)
settings_of_logs = st.fixed_dictionaries(
    {
        "segment_bytes": st.sampled_from([500, 1000, 3000, 1 << 30]),
        "segment_ms": st.sampled_from([1, 800, 10**9]),
        "index_interval_bytes": st.sampled_from([0, 100, 1000, 4096]),
    }
)
restart = st.sampled_from(["none", "close", "kill"])
index_damage = st.lists(
    st.tuples(
        st.sampled_from([".index", ".timeindex"]),
        st.integers(0, 9),
        st.sampled_from(["remove", "zero", "cut", "overwrite"]),
        st.integers(0, 400),
        st.binary(min_size=1, max_size=24),
    ),
    max_size=6,
)


def ages(log: PartitionLog) -> list[tuple[int, int]]:
    """Return base offset and age, as Kafka defines it, of each segment with records, read from the files alone."""
    found = []
    for path in sorted(log.directory.glob("*.log")):
        if path.stat().st_size:
            newest = max(header.max_timestamp for header in batches(path.read_bytes()))
            modified_ms = os.stat(path).st_mtime_ns // 1_000_000
            found.append((int(path.stem), newest if newest >= 0 else modified_ms))
    return found


def hurt(directory: Path, damage: list[tuple[str, int, str, int, bytes]]) -> None:
    """Damage index files."""
    for suffix, which, how, at, data in damage:
        paths = sorted(directory.glob(f"*{suffix}"))
        if not paths:
            continue
        path = paths[which % len(paths)]
        if how == "remove":
            path.unlink()
        elif how == "zero":
            path.write_bytes(bytes(path.stat().st_size))
        elif how == "cut":
            os.truncate(path, min(at, path.stat().st_size))
        else:
            with open(path, "r+b") as file:
                file.seek(at % (path.stat().st_size + 1))
                file.write(data)


@settings(max_examples=150, deadline=None)
@given(
    batches_of=appended,
    options=settings_of_logs,
    how=restart,
    damage=index_damage,
    now_ms=st.integers(NOW_MS - 3000, NOW_MS + 6000),
)
def test_exactly_what_is_too_old_goes(
    batches_of: list[tuple[int, int]],
    options: dict[str, int],
    how: str,
    damage: list[tuple[str, int, str, int, bytes]],
    now_ms: int,
) -> None:
    """Nothing younger than its retention goes, everything older does, from the oldest segment on."""
    root = Path(tempfile.mkdtemp(prefix="tidegate-retention-"))
    try:
        log = new_log(root / "log", retention_ms=RETENTION_MS, **options)
        for time_ms, size in batches_of:
            append(log, batch(value=bytes(size), time_ms=time_ms), NOW_MS)
        if how == "close":
            log.close()
        for path in (root / "log").glob("*.log"):
            os.utime(path, (NOW_MS / 1000, NOW_MS / 1000))
        if how != "none":
            shutil.copytree(root / "log", root / "again")
            hurt(root / "again", damage)
            log = new_log(root / "again", retention_ms=RETENTION_MS, **options)
        end = log.end_offset
        assert end == len(batches_of)
        kept = ages(log)
        while kept and now_ms - kept[0][1] > RETENTION_MS:
            kept.pop(0)
        expire(log, now_ms)
        assert ages(log) == kept
        assert log.start_offset == (kept[0][0] if kept else end)
        assert log.end_offset == end
    finally:
        shutil.rmtree(root)
