"""Log lines as text or as JSON, for the broker and the usage writer.

A JSON line is one object: `ts` (UTC, in ms), `level`, `logger`, `message`, the fields of an audit line, and `exception`
if there is one. Line breaks in a message are escaped, so each line is a whole object.

>>> record = logging.LogRecord("tidegate.server", logging.WARNING, "", 0, "closed %d", (7,), None)
>>> record.created = 0.25
>>> formatter("json").format(record)
'{"ts": "1970-01-01T00:00:00.250Z", "level": "WARNING", "logger": "tidegate.server", "message": "closed 7"}'
"""

import json
import logging
import math
from datetime import UTC, datetime
from typing import Any, Final

__all__ = ["JSON", "LOG_FORMATS", "TEXT", "formatter"]

TEXT: Final = "text"
JSON: Final = "json"
LOG_FORMATS: Final = (TEXT, JSON)
_TEXT_LINE = "%(asctime)s %(levelname)s %(message)s"
_TEXT_LINE_OF_PROCESS = "%(asctime)s %(levelname)s process {}: %(message)s"


class _JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object. process: the number of the process, of a gateway with several."""

    def __init__(self, process: int | None) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line of ASCII."""
        moment = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, Any] = {
            "ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process is not None:
            fields["process"] = self._process
        audit: dict[str, Any] = getattr(record, "audit", {})
        fields |= {key: _jsonable(value) for key, value in audit.items()}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _jsonable(value: Any) -> Any:
    """Return a value as JSON has it: NaN and the infinities are none of its numbers."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def formatter(
    log_format: str, text_line: str = _TEXT_LINE, *, process: int | None = None
) -> logging.Formatter:
    """Return the formatter of one of `LOG_FORMATS`. text_line: the format of a line of text, as `logging` has it.

    process: the number that each line contains, of a process of a gateway with several.
    """
    if log_format == JSON:
        return _JsonFormatter(process)
    return logging.Formatter(text_line if process is None else _TEXT_LINE_OF_PROCESS.format(process))
