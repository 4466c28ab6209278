"""The rows of quota definitions in the metadata store, changed all or none however many there are.

A few changes are one transaction. A transaction of thousands would hold the event loop and block all other writes.
Many changes are therefore first written to a table of their own (`quota_changes`), a piece at a time. One row in `meta`
then makes all of them binding at once, and they are moved to the definitions, again a piece at a time. If the process
dies in between, the next start completes changes that are binding, and drops others.
"""

import json
import struct
from collections.abc import Generator, Iterable, Sequence
from itertools import chain

from tidegate.in_slices import lots, run_at_once
from tidegate.quota.admin.alterations import QuotaRecord
from tidegate.storage.errors import StorageError
from tidegate.storage.metadata.store_connection import StoreConnection

__all__ = ["AT_ONCE", "PENDING_TABLE", "QuotaRows"]

AT_ONCE = 100
"""Most changes in one transaction, about a millisecond."""
AT_ONCE_BYTES = 64 * 1024  # of names, for names may be 32 KB long
PENDING_TABLE = """
CREATE TABLE IF NOT EXISTS quota_changes (
    number INTEGER PRIMARY KEY, entity TEXT NOT NULL, name TEXT NOT NULL, value BLOB
)
"""
_BINDING = "quota_changes_binding"
_DOUBLE = struct.Struct(
    ">d"
)  # values are kept as their eight bytes: SQLite would turn NaN to null and -0.0 to 0

_Row = tuple[str, str, bytes | None]


class QuotaRows:
    """The quota definitions of one store. Every method raises `StorageError` where SQLite fails."""

    def __init__(self, connection: StoreConnection) -> None:
        self._run, self._transaction = connection.run, connection.transaction
        self._left_over = True  # maybe, by an earlier process

    def load(self) -> list[QuotaRecord]:
        """Return a record per stored definition."""
        run_at_once(self._complete())
        rows = self._run("SELECT entity, name, value FROM quotas ORDER BY entity, name").fetchall()
        return [
            QuotaRecord(
                entity=tuple((part, name) for part, name in json.loads(entity)),
                key=key,
                value=_DOUBLE.unpack(value)[0],
            )
            for entity, key, value in rows
        ]

    def apply(self, records: Sequence[QuotaRecord]) -> Generator[None, None, None]:
        """Store all of `records`, or none, yielding in between; a record without a value removes its definition.

        One at a time: the next may only begin when this one has ended.
        """
        yield from self._complete()
        pieces = lots(map(_row, records), _letters, most=AT_ONCE, most_size=AT_ONCE_BYTES)
        first = next(pieces, [])
        second = next(pieces, None)
        if second is None:
            with self._transaction():
                self._put(first)
            return
        self._left_over = True
        for piece in chain((first, second), pieces):
            self._write_beside(piece)
            yield
        with self._transaction():
            self._run("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_BINDING, "1"))
        try:
            yield from self._complete()
        except StorageError:
            return  # the changes are stored; the next change, or the next start, completes them

    def _complete(self) -> Generator[None, None, None]:
        """Apply binding changes from `quota_changes` to the definitions; delete those that are not binding."""
        if not self._left_over:
            return
        binding = self._run("SELECT 1 FROM meta WHERE name=?", (_BINDING,)).fetchone() is not None
        while True:
            rows = self._run(
                "SELECT number, entity, name, value FROM quota_changes ORDER BY number LIMIT ?", (AT_ONCE,)
            ).fetchall()
            if not rows:
                break
            with self._transaction():
                if binding:
                    self._put([row[1:] for row in rows])
                self._run("DELETE FROM quota_changes WHERE number <= ?", (rows[-1][0],))
            yield
        if binding:
            with self._transaction():
                self._run("DELETE FROM meta WHERE name=?", (_BINDING,))
        self._left_over = False

    def _write_beside(self, rows: Iterable[_Row]) -> None:
        with self._transaction():
            for row in rows:
                self._run("INSERT INTO quota_changes (entity, name, value) VALUES (?, ?, ?)", row)

    def _put(self, rows: Iterable[_Row]) -> None:
        for entity, key, value in rows:
            if value is None:
                self._run("DELETE FROM quotas WHERE entity=? AND name=?", (entity, key))
            else:
                self._run("INSERT OR REPLACE INTO quotas VALUES (?, ?, ?)", (entity, key, value))


def _row(record: QuotaRecord) -> _Row:
    value = None if record.value is None else _DOUBLE.pack(record.value)
    return json.dumps(record.entity), record.key, value


def _letters(row: _Row) -> int:
    return len(row[0])
