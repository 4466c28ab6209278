"""Names of topics, by their bytes in messages: a name, or an id.

From version 13 on, Produce and Fetch have topic ids in place of names. When the gateway sees an id for the first time,
it asks the cluster for the name. Until it has the answer, the topic is unknown. Topics that the gateway's user may not
describe stay unknown.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tidegate.client.errors import ClientError

__all__ = ["IDS_SINCE", "MAX_ASKED", "TopicNames"]

_log = logging.getLogger("tidegate.gateway")

IDS_SINCE = 13
"""The first version of Produce and of Fetch with ids."""
MAX_KEPT = 10_000
"""Names of topics that are kept; when there are more, all are forgotten."""
MAX_NAME_BYTES = 249
"""Length of a topic's name. Follows: Kafka `Topic.MAX_NAME_LENGTH`."""
MAX_ASKED = 200
"""Ids that are asked for in one request."""
PAUSE_S = 0.2
"""Delay in which the gateway collects further ids before it asks for their names."""
UNKNOWN_FOR_S = 60.0
"""Time for which an id without a name is not asked for again."""


class TopicNames:
    """Names of topics as strings, by the bytes that stand for them in messages. `follow` asks for those of ids.

    ask: returns the names of ids; ids that the cluster does not name are missing. Raises `ClientError`.
    """

    def __init__(self, ask: Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]) -> None:
        self._ask = ask
        self._names: dict[bytes, str] = {}
        self._ids: dict[bytes, str | None] = {}  # None: the cluster does not say
        self._wanted: dict[bytes, None] = {}
        self._is_wanted = asyncio.Event()
        self._forget_unknown_s = 0.0

    def name(self, key: bytes, version: int) -> str | None:
        """Return the name of a topic in a message of this version, None where it is unknown."""
        if version >= IDS_SINCE:
            found = self._ids.get(key)
            if found is None and key not in self._ids and len(self._wanted) < MAX_ASKED:
                self._wanted[key] = None
                self._is_wanted.set()
            return found
        return self._names.get(key) or self._read_name(key)

    async def follow(self) -> None:
        """Ask for the names of ids as they are wanted. Never ends."""
        loop = asyncio.get_running_loop()
        while True:
            await self._is_wanted.wait()
            await asyncio.sleep(PAUSE_S)
            self._is_wanted.clear()
            wanted, self._wanted = list(self._wanted), {}
            if loop.time() > self._forget_unknown_s:
                self._forget_unknown_s = loop.time() + UNKNOWN_FOR_S
                self.forget_unknown()
            if len(self._ids) + len(wanted) > MAX_KEPT:
                self._ids.clear()
            texts = [str(uuid.UUID(bytes=key)) for key in wanted]
            names: Mapping[str, str] = {}
            try:
                names = await self._ask(texts)
            except ClientError as error:
                _log.info("cannot ask the cluster for names of topics: %s", error)
            for key, text in zip(wanted, texts, strict=True):
                self._ids[key] = names.get(text)

    def forget_unknown(self) -> None:
        """Remove ids without a name: they are asked for again."""
        self._ids = {key: name for key, name in self._ids.items() if name is not None}

    def _read_name(self, key: bytes) -> str | None:
        if not 0 < len(key) <= MAX_NAME_BYTES:
            return None
        try:
            name = key.decode()
        except UnicodeDecodeError:
            return None
        if len(self._names) >= MAX_KEPT:
            self._names.clear()
        self._names[key] = name
        return name
