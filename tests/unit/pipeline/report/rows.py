"""Rows of the replay's table by entity, and names that want to do harm."""

from tidegate.pipeline.layout import FORECAST_COLUMNS
from tidegate.pipeline.schemas import REPLAY_BY_ENTITY

HOSTILE = (
    "[red]x\x1b[2J\r\n\t\u202e\x9b5m",  # controls, markup, a change of direction
    "n" * 32_767,
    "注文サービス" * 5000,  # two cells a character
    "e\u0301" * 16_000,  # no cell for half of them
    "👩‍👩‍👧‍👦" * 100,
    "",
)


def outcome(plan="p", user=None, client_id=None, **columns):
    """Return a row of `REPLAY_BY_ENTITY` of several clients; what is not given is 0, or none."""
    row = dict.fromkeys(REPLAY_BY_ENTITY.names, 0)
    row |= {"plan": plan, "quota_type": "Produce", "entity_user": user, "entity_client_id": client_id}
    row |= dict.fromkeys(
        ("entity_tags", "bound", "bound_of", "only_user", "only_client_id", *FORECAST_COLUMNS)
    )
    level = "client-id" if user is None else "user" if client_id is None else "user and client-id"
    row |= {"bound_of": level if columns.get("bound") else None, "bound_changed": False}
    row |= {"first_throttled_ts_ms": None, "recorded_first_throttled_ts_ms": None}
    return row | columns
