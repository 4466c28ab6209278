"""A connection to the metadata store's file: the event loop has one, the thread that writes groups has another.

Both share a lock for changes: SQLite has one writer at a time, and a connection that finds the database busy would
sleep and try again. A transaction of the thread takes about a millisecond, the longest that the loop waits.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from tidegate.storage.errors import StorageError

__all__ = ["StoreConnection"]

_STATEMENTS = 256  # that a connection keeps prepared
_KEPT_RECENT_BYTES = 4 << 20  # of the write-ahead log's file, when it begins anew


class StoreConnection:
    """One connection. Every method raises `StorageError` where SQLite fails, and has then changed nothing.

    writing: is held during each change. lost: returns why nothing may be changed any more, if anything.
    """

    def __init__(self, path: Path, writing: RLock, lost: Callable[[], str | None]) -> None:
        """Open the file. Raises `sqlite3.Error`."""
        self._path = path
        self._writing = writing
        self._lost = lost
        self.db = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=_STATEMENTS
        )

    def prepare(self) -> None:
        """Set how changes reach the disk: no commit waits for it, and none moves them into the database itself."""
        self.db.execute("PRAGMA synchronous=NORMAL")
        self.db.execute("PRAGMA wal_autocheckpoint=0")
        self.db.execute(f"PRAGMA journal_size_limit={_KEPT_RECENT_BYTES}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what happens inside, or take all of it back."""
        with self._writing:
            self.change("BEGIN IMMEDIATE")
            try:
                yield
                self.run("COMMIT")
            except BaseException:
                if self.db.in_transaction:  # some failures, of a full disk for example, end it by themselves
                    self.run("ROLLBACK")
                raise

    def change(self, statement: str, values: Sequence[object] = ()) -> None:
        """Execute one statement that changes something."""
        lost = self._lost()
        if lost is not None:
            raise StorageError(lost)
        with self._writing:
            self.run(statement, values)

    def run(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Execute one statement that reads, or is part of a transaction."""
        try:
            return self.db.execute(statement, values)
        except sqlite3.Error as error:
            raise StorageError(f"cannot use {str(self._path)!r}: {error}") from error

    def run_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Execute a statement of a transaction for each of some rows."""
        for row in rows:
            self.run(statement, row)

    def close(self) -> None:
        """Close it."""
        self.db.close()
