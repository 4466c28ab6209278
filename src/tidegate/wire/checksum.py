"""CRC-32C (Castagnoli), the checksum of record batches; the library is loaded at the first use.

    checksum.crc32c(data, crc_of_bytes_before=0) -> int

Loading it takes a tenth of what loading all of the broker takes
(`python -X importtime -c "import tidegate.cli.serving"`), and the first request comes before the first batch.
"""

from collections.abc import Callable
from typing import Any

__all__ = ["crc32c"]

crc32c: Callable[..., int]


def __getattr__(name: str) -> Any:
    if name != "crc32c":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from crc32c import crc32c

    globals()[name] = crc32c
    return crc32c
