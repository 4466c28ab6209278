"""The SCRAM credentials of users in the metadata store: what logins are held against, no password."""

from collections.abc import Sequence

from tidegate.scram import SCRAM_MECHANISMS, CredentialChange, ScramCredential
from tidegate.storage.metadata.store_connection import StoreConnection

__all__ = ["CREDENTIALS_TABLE", "CredentialRows"]

CREDENTIALS_TABLE = """
CREATE TABLE IF NOT EXISTS scram_credentials (
    user TEXT NOT NULL, mechanism TEXT NOT NULL, salt BLOB NOT NULL, stored_key BLOB NOT NULL,
    server_key BLOB NOT NULL, iterations INTEGER NOT NULL, PRIMARY KEY (user, mechanism)
) WITHOUT ROWID
"""


class CredentialRows:
    """The credentials of one store. Every method raises `StorageError` where SQLite fails."""

    def __init__(self, connection: StoreConnection) -> None:
        self._run, self._transaction = connection.run, connection.transaction

    def load(self) -> list[CredentialChange]:
        """Return every credential of a mechanism that is known."""
        rows = self._run(
            "SELECT user, mechanism, salt, stored_key, server_key, iterations FROM scram_credentials"
        )
        return [
            CredentialChange(
                user,
                mechanism,
                ScramCredential(salt=salt, stored_key=stored, server_key=server, iterations=iterations),
            )
            for user, mechanism, salt, stored, server, iterations in rows
            if mechanism in SCRAM_MECHANISMS
        ]

    def change(self, changes: Sequence[CredentialChange]) -> None:
        """Keep all of `changes`, or none."""
        with self._transaction():
            for user, mechanism, credential in changes:
                if credential is None:
                    self._run("DELETE FROM scram_credentials WHERE user=? AND mechanism=?", (user, mechanism))
                else:
                    self._run(
                        "INSERT OR REPLACE INTO scram_credentials VALUES (?, ?, ?, ?, ?, ?)",
                        (
                            user,
                            mechanism,
                            credential.salt,
                            credential.stored_key,
                            credential.server_key,
                            credential.iterations,
                        ),
                    )
