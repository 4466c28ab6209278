"""Readers of the usage record: which files to read, and the rows of a spool segment.

`list_files` returns the Parquet files; `complete_files` also converts what is still in the spool, as the jobs need.
"""

from tidegate.usage.arrow import ParquetError
from tidegate.usage.events import Event, read_segment
from tidegate.usage.files import is_imported, list_files
from tidegate.usage.unconverted import complete_files

__all__ = ["Event", "ParquetError", "complete_files", "is_imported", "list_files", "read_segment"]
