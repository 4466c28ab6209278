"""Which topics a consumer subscribes to, as its metadata say. Follows: Kafka `ConsumerProtocolSubscription`."""

import struct

__all__ = ["subscribed_topics"]

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_OWNED_SINCE, _GENERATION_SINCE, _RACK_SINCE = 1, 2, 3


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    r"""Return the topics of a subscription, None where it cannot be read to its end.

    >>> subscribed_topics(bytes.fromhex("0000 00000001 0001 74 00000000"))
    frozenset({'t'})
    >>> subscribed_topics(bytes.fromhex("0000 00000001 0001 74")) is None
    True
    """
    try:
        return _read(metadata)
    except (struct.error, UnicodeDecodeError, ValueError):
        return None


def _read(metadata: bytes) -> frozenset[str]:
    at = 0

    def number(packed: struct.Struct) -> int:
        nonlocal at
        (value,) = packed.unpack_from(metadata, at)
        at += packed.size
        return int(value)

    def content(length: int) -> bytes:
        nonlocal at
        if not 0 <= length <= len(metadata) - at:
            raise ValueError(length)
        at += length
        return metadata[at - length : at]

    def count() -> int:
        value = number(_INT)
        if value < 0:
            raise ValueError(value)
        return value

    version = number(_SHORT)
    if version < 0:
        raise ValueError(version)
    topics = frozenset([content(number(_SHORT)).decode() for _ in range(count())])
    user_data = number(_INT)
    content(max(user_data, 0))
    if version >= _OWNED_SINCE:
        for _ in range(count()):
            content(number(_SHORT))
            content(count() * _INT.size)
    if version >= _GENERATION_SINCE:
        number(_INT)
    if version >= _RACK_SINCE:
        content(max(number(_SHORT), 0))
    return topics
