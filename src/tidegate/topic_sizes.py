"""Bytes of records by topic in one Produce or Fetch, for the usage record."""

__all__ = ["TopicSizes"]


class TopicSizes:
    """Sums of bytes by topic. Topics without bytes are not in it, so that names of no topic cannot fill it.

    >>> sizes = TopicSizes()
    >>> sizes.add("orders", 300)
    >>> sizes.add("clicks", 200)
    >>> sizes.add("clicks", 200)
    >>> sizes.largest()
    ('clicks', 1)
    """

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}

    def add(self, topic: str, size: int) -> None:
        """Add bytes of a topic."""
        if size:
            self._bytes[topic] = self._bytes.get(topic, 0) + size

    def largest(self) -> tuple[str | None, int]:
        """Return the topic with the most bytes, the first of several, and the number of others; (None, 0): no bytes."""
        sizes = self._bytes
        if not sizes:
            return None, 0
        return max(sizes, key=sizes.__getitem__), len(sizes) - 1
