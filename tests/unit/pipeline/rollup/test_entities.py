"""Entities added up of parts are those of the whole."""

from random import Random

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.rollup.entities import ENTITY_KEYS, by_entity_table, entities_together
from tidegate.pipeline.rollup.sums import compact
from tidegate.pipeline.schemas import REPLAY_BY_CLIENT, REPLAY_BY_ENTITY

_SCHEMA = to_arrow_schema(REPLAY_BY_CLIENT)


def _client(rng):
    """Return a row of `REPLAY_BY_CLIENT`, with entities, limits and clients that others have, too."""
    row = {
        name: rng.choice((0, 1, 200, 2**40, *([None] if name.endswith("_ts_ms") else [])))
        for name, kind in zip(_SCHEMA.names, _SCHEMA.types, strict=True)
        if pa.types.is_integer(kind)
    }
    limit = rng.choice(((None, None), (1.5, "user"), (float("nan"), "user"), (2.5, "client-id")))
    names = {name: rng.choice("ab") for name in ("user", "client_id")}
    return row | names | {
        "plan": rng.choice("pq"),
        "quota_type": "Produce",
        "entity_user": rng.choice((None, "", "a", "b")),
        "entity_client_id": rng.choice((None, "c")),
        "bound": limit[0],
        "bound_of": limit[1],
        "bound_changed": rng.random() < 0.1,
        "node_id": rng.randrange(3),
    }  # fmt: skip


def test_parts_are_the_whole():
    """Sums, extremes, limits that changed between parts, NaN, and what all clients have in common."""
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    tables = [
        pa.Table.from_pylist([_client(rng) for _ in range(rng.randrange(9))], _SCHEMA) for _ in range(5)
    ]
    found = entities_together([compact(by_entity_table(table)) for table in tables])
    whole = by_entity_table(pa.concat_tables(tables))
    assert whole.schema.names == found.schema.names == REPLAY_BY_ENTITY.names
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, whole.to_pylist()))
    assert len(found.group_by(list(ENTITY_KEYS)).aggregate([])) == len(found)


def test_nothing_is_a_table():
    """With all columns."""
    found = entities_together([])
    assert found.schema == entities_together([compact(by_entity_table(_SCHEMA.empty_table()))]).schema
    assert found.schema.names == REPLAY_BY_ENTITY.names
