"""Names of clients and quota entities as people read them: harmless, and not too long."""

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from rich.cells import cell_len, set_cell_size

from tidegate.pipeline.report.text import NOTHING
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.managers.quota_type import QuotaType

__all__ = [
    "BYTE_QUOTAS",
    "QUOTA_NAMES",
    "entity_parts_of",
    "entity_text",
    "fitted",
    "fitted_entity",
    "name_text",
    "padded",
    "parts_text",
    "quota_text",
]

QUOTA_NAMES = {
    QuotaType.PRODUCE.value: "produce",
    QuotaType.FETCH.value: "fetch",
    QuotaType.REQUEST.value: "request",
    QuotaType.CONTROLLER_MUTATION.value: "mutation",
}
"""Short names of the types of quota, in the order in which they are shown."""

BYTE_QUOTAS = {QuotaType.PRODUCE.value, QuotaType.FETCH.value}

_LONGEST_NAME = 40  # characters of a user or client id that a table shows
_SHORTEST_NAME = 8  # cells
_LONGEST_KIND, _MOST_TAGS = 20, 2
_TAIL, _WHOLE = 2, 5  # the end of a name that is shortened takes two fifths of the room


def name_text(name: str | None, *, longest: int = _LONGEST_NAME) -> str:
    r"""Return a client's name without control characters and not too long, or `–` for None.

    A long name is shortened in the middle: names of pods differ at their end.

    >>> name_text("payments-7f9c6d5b4-x2x4z", longest=14)
    'payments…x2x4z'
    >>> name_text("a\x1b[2J"), name_text(None), name_text("")
    ('a\\x1b[2J', '–', "''")
    """
    if name is None:
        return NOTHING
    characters = (
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in name
    )
    shown = "".join(characters) or "''"
    if len(shown) <= longest:
        return shown
    tail = longest * _TAIL // _WHOLE
    return f"{shown[: longest - 1 - tail]}…{shown[len(shown) - tail :]}"


def entity_parts_of(user: str | None, client_id: str | None, tags: str | None) -> list[tuple[str, str]]:
    """Return the parts of a quota entity as pairs of a kind and a name. tags: of a quota callback, as JSON.

    >>> entity_parts_of("alice", None, None), entity_parts_of(None, None, '{"group":"etl"}')
    ([('user', 'alice')], [('group', 'etl')])
    """
    parts = [(kind, name) for kind, name in (("user", user), ("client-id", client_id)) if name is not None]
    if tags is not None:
        some = islice(json.loads(tags).items(), _MOST_TAGS)
        parts += [(name_text(kind, longest=_LONGEST_KIND), name) for kind, name in some]
    return parts


def entity_text(row: Mapping[str, Any], *, otherwise: str = NOTHING) -> str:
    """Return the entity of a row of a result, as options of the command line name it. otherwise: for an empty entity.

    >>> entity_text({"entity_user": "alice", "entity_client_id": "app"})
    'user=alice client-id=app'
    """
    parts = entity_parts_of(row["entity_user"], row["entity_client_id"], row.get("entity_tags"))
    return " ".join(f"{kind}={name_text(name)}" for kind, name in parts) or otherwise


def quota_text(row: Mapping[str, Any]) -> str:
    """Return the entity of a row and the type of its quota.

    >>> quota_text({"quota_type": "Fetch", "entity_user": "alice", "entity_client_id": None})
    'user=alice (fetch)'
    """
    return f"{entity_text(row, otherwise='clients without an id')} ({QUOTA_NAMES[row['quota_type']]})"


def fitted_entity(parts: Sequence[tuple[str, str]], cells: int) -> str:
    """Return parts of `entity_parts_of` in so many cells of a terminal, if that leaves 8 cells for each name."""
    room = max(_SHORTEST_NAME, (cells - sum(len(f"{kind}= ") for kind, _ in parts)) // max(1, len(parts)))
    return " ".join(f"{kind}={fitted(name_text(name, longest=room), room)}" for kind, name in parts)


def parts_text(entity: EntityParts) -> str:
    """Return an entity of a plan, the user first.

    >>> parts_text((("client-id", None), ("user", "alice")))
    'user=alice client-id=<default>'
    """
    return " ".join(
        f"{kind}={'<default>' if name is None else name_text(name)}"
        for kind, name in sorted(entity, reverse=True)
    )


def fitted(text: str, cells: int) -> str:
    """Return `text` in at most so many cells of a terminal, shortened in the middle; a wide character takes two.

    >>> fitted("loader", 6), fitted("bulk-loader", 6), fitted("注文サービス", 6)
    ('loader', 'bul…er', '注…ス')
    """
    if cell_len(text) <= cells:
        return text
    tail, room = "", cells * _TAIL // _WHOLE
    for char in reversed(text[-cells:]):
        if cell_len(char + tail) > room:
            break
        tail = char + tail
    return f"{set_cell_size(text, cells - 1 - cell_len(tail)).rstrip()}…{tail}"


def padded(text: str, cells: int, *, is_left: bool = True) -> str:
    """Return `text` padded with blanks to so many cells of a terminal, left or right. Longer text stays as it is.

    >>> padded("注文", 6), padded("12", 6, is_left=False)
    ('注文  ', '    12')
    """
    blanks = " " * (cells - cell_len(text))
    return text + blanks if is_left else blanks + text
