"""Errors of the embedded storage."""

from tidegate.errors import TidegateError

__all__ = ["AppendError", "LogDamagedError", "OffsetOutOfRangeError", "StorageError", "UnreadableBatchError"]


class StorageError(TidegateError):
    """Raise when the data directory cannot be used: foreign, corrupt, locked or unreadable files."""


class LogDamagedError(StorageError):
    """Raise when records that a log should hold are missing or cannot be read: error 56, or no start."""


class UnreadableBatchError(StorageError):
    """Raise when the records of a stored batch, whose CRC is right, cannot be read: its producer wrote no records.

    error_code: Kafka's for a lookup: -1 where they cannot be decompressed, 87 where what is there is no record.
    """

    def __init__(self, message: str, error_code: int) -> None:
        super().__init__(message)
        self.error_code = error_code


class AppendError(TidegateError):
    """Raise when a record batch is not stored; `error_code` is Kafka's and goes to the client.

    log_start_known: Kafka answers the log start offset with some refusals and -1 with others.
    error_message: the text that the answer has; in Kafka mostly none.
    """

    def __init__(
        self,
        error_code: int,
        message: str,
        *,
        log_start_known: bool = False,
        error_message: str | None = None,
    ) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.log_start_known = log_start_known
        self.error_message = error_message

    def without_frames(self) -> "AppendError":
        """Return the error without the tracebacks of itself and its causes: a frame that keeps the error is a cycle."""
        return AppendError(
            self.error_code, str(self), log_start_known=self.log_start_known, error_message=self.error_message
        )


class OffsetOutOfRangeError(TidegateError):
    """Raise when a read asks for an offset before the start or after the end of a log."""
