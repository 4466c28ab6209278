"""The rows of several plans, compared by quota entity, or by client if an entity has only one.

Rows stay columns until they are shown: of a million clients only the first become Python objects.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan, group_tags
from tidegate.pipeline.report.limits_report import SMALLEST_LIMITS
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.pipeline.rollup.sums import Flags, Numbers, compact_column, key_numbers, release_free_memory
from tidegate.pipeline.schemas import REPLAY_BY_ENTITY
from tidegate.quota.managers.quota_type import QuotaType

__all__ = [
    "KEY_OF_TYPE",
    "Compared",
    "Comparison",
    "Row",
    "as_recorded",
    "compared",
    "delayed_amount",
    "entity_rows",
    "is_judged",
    "judged_rows",
    "record_of",
    "with_limits",
]

KEY_OF_TYPE = {quota_type.value: quota_type.key for quota_type in QUOTA_TYPES}
"""Kafka's quota key by quota type."""

Row = Mapping[str, Any]
"""A row of `REPLAY_BY_ENTITY`."""

_Entity = tuple[str | None, str | None, str | None]  # user, client id, other tags
_OUTCOME = ("throttled_requests", "throttle_ms", "delayed_amount", "rejected_mutations")
_COUNTED = ("requests", "amount", *_OUTCOME)
_LONGEST, _FIRST = "longest_throttle_ms", "first_throttled_ts_ms"
_RECORDED = (*_COUNTED, _LONGEST, _FIRST)
_SUMS = (
    *_COUNTED,
    *(f"recorded_{name}" for name in _COUNTED),
    *(f"{name}_{end}" for name in ("throttled_requests", "throttle_ms") for end in ("low", "high")),
)
_LARGEST_OF_RANGE = (f"{_LONGEST}_low", f"{_LONGEST}_high")
_ENDS = (*_SUMS[-4:], *_LARGEST_OF_RANGE)
"""The ends of the ranges of a forecast."""
_HELD_BACK = ("throttled_requests", "rejected_mutations")
_ENTITY = ("entity_user", "entity_client_id", "entity_tags")
_ONLY = ("only_user", "only_client_id")
_RANKS = ("throttle_ms", "recorded_throttle_ms", "rejected_mutations", "recorded_rejected_mutations")
_NUMBERS = (*_RANKS, "is_named", "requests")
_ORDER = [
    *((name, "descending") for name in _NUMBERS),
    *((name, "ascending") for name in ("quota_type", "user", "client_id", "tags", "group")),
]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Compared:
    """An entity, or the only client of several entities, with a row for each plan.

    is_named: it has a limit of its own in a plan. tags: tags of a quota callback as JSON, if they are not a user and a
    client id. only_client: user and client id of the only client, or None. There is no row for a plan that counts this
    client together with others.
    """

    quota_type: str
    user: str | None
    client_id: str | None
    tags: str | None
    rows: Mapping[str, Row]
    is_named: bool
    only_client: tuple[str, str] | None = None

    @property
    def key(self) -> str:
        """Return a key that is unique in the comparison.

        A user's quota and the quota of that user's empty client id have the same user and client id.
        """
        entities = {
            _names_text(_entity(row)[: None if row.get("entity_tags") else 2]) for row in self.rows.values()
        }
        only = [] if self.only_client is None else [_names_text(self.only_client)]
        return "/".join([self.quota_type, "+".join(sorted(entities)), *only])

    @property
    def record(self) -> Row:
        """Return the row with the most requests, with its recorded values."""
        return record_of(self.rows.values())

    @property
    def is_throttled(self) -> bool:
        """Return whether a request was throttled or a mutation refused, in the record or by a plan."""
        names = [f"{prefix}{column}" for prefix in ("", "recorded_") for column in _HELD_BACK]
        names.append("throttled_requests_high")
        return any(row.get(name) for name in names for row in self.rows.values())


class Comparison:
    """The compared entities: first those with the longest throttling by a plan, then in the record, then with a limit.

    Entities that consist of the same single client are compared as one, whatever level their quotas have in each plan.
    An entity is of interest if it was throttled in a plan or in the record, or has a limit of its own in a plan.
    """

    def __init__(self, plans: Sequence[Plan], rows: TableRows) -> None:
        self._rows = rows
        self._named = _named(plans)
        self._group = _groups(rows.table)
        release_free_memory()
        self._ranked = _ranked(rows.table, self._group, self._named)
        release_free_memory()
        self.of_interest = int(pc.sum(self._ranked["is_of_interest"]).as_py() or 0)
        """The number of entities of interest."""

    def __len__(self) -> int:
        """Return the number of compared entities."""
        return len(self._ranked)

    def first(self, top: int, *, with_all: bool) -> list[Compared]:
        """Return the first `top`; of those that are of interest, unless `with_all`."""
        ranked = self._ranked if with_all else self._ranked.filter(pc.field("is_of_interest"))
        if not len(ranked):
            return []
        ranked = _with_names(ranked.take(_foremost(ranked, top)), self._rows.table)
        places = pc.select_k_unstable(ranked, min(top, len(ranked)), sort_keys=_ORDER)
        groups = ranked["group"].take(places).to_numpy()
        wanted = np.isin(self._group, groups)
        by_group: dict[int, dict[str, Row]] = {group: {} for group in groups.tolist()}
        rows = self._rows.table.filter(pa.array(wanted)).to_pylist()
        for group, row in zip(self._group[wanted].tolist(), rows, strict=True):
            by_group[group][row["plan"]] = row
        return [_compared(by_plan, self._named) for by_plan in by_group.values()]

    def of_type(self, quota_type: str) -> int:
        """Return the number of compared entities of a quota type."""
        return int(pc.sum(pc.equal(self._ranked["quota_type"], quota_type)).as_py() or 0)

    def total(self, quota_type: str, plan: str) -> Row:
        """Return the sums of all entities of a plan and a quota type, in the columns that a table shows."""
        of_limits = ("bound", "bound_changed", "approximate_imported")
        columns = [
            "quota_type",
            "plan",
            *_SUMS,
            *_both(_LONGEST),
            *_LARGEST_OF_RANGE,
            *_both(_FIRST),
            *of_limits,
        ]
        shown = self._rows.table.select(columns)
        rows = TableRows(shown).where(quota_type=quota_type, plan=plan)
        sums = rows.sums()
        return {
            "quota_type": quota_type,
            **{name: pc.max(rows.table[name]).as_py() for name in of_limits},
            **{name: None if rows.table[name].null_count else sums[name] for name in _SUMS},
            **{name: pc.max(rows.table[name]).as_py() or 0 for name in _both(_LONGEST)},
            **{name: pc.max(rows.table[name]).as_py() for name in _LARGEST_OF_RANGE},
            **{name: pc.min(rows.table[name]).as_py() for name in _both(_FIRST)},
        }


def compared(plans: Sequence[Plan], rows: Sequence[Row]) -> Comparison:
    """Return the comparison of rows of `REPLAY_BY_ENTITY`."""
    return Comparison(plans, entity_rows(rows))


def is_judged(row: Row) -> bool:
    """Return whether a replay shows the effect of the quota of a row: not for request time from a request log.

    Such a log does not contain the time of network threads, so that a replay throttles too little, or nothing.
    """
    has_limit = row["bound"] is not None or row["bound_changed"]
    return row["quota_type"] != QuotaType.REQUEST.value or not (has_limit and row["approximate_imported"])


def judged_rows(rows: TableRows) -> TableRows:
    """Return the rows for which `is_judged` holds."""
    table = rows.table
    is_of_requests = pc.equal(table["quota_type"], QuotaType.REQUEST.value)
    has_limit = pc.or_(pc.is_valid(table["bound"]), table["bound_changed"])
    is_cut = pc.and_(has_limit, pc.not_equal(pc.fill_null(table["approximate_imported"], 0), 0))
    return TableRows(table.filter(pc.invert(pc.and_(is_of_requests, is_cut))))


def delayed_amount(row: Row) -> int:
    """Return the amount of an entity in throttled requests, at most the whole amount of the entity.

    A fetch that is throttled repeatedly is in several of them, and its bytes count once.
    """
    delayed: int = row["delayed_amount"]
    return min(delayed, row["amount"]) if row["quota_type"] == QuotaType.FETCH.value else delayed


def entity_rows(rows: Sequence[Row]) -> TableRows:
    """Return rows of `REPLAY_BY_ENTITY`, with or without the columns of `with_limits`, as rows of a table."""
    if isinstance(rows, TableRows):
        return rows
    schema = to_arrow_schema(REPLAY_BY_ENTITY)
    for name in SMALLEST_LIMITS if rows and SMALLEST_LIMITS[0] in rows[0] else ():
        schema = schema.append(pa.field(name, pa.float64()))
    return TableRows(pa.Table.from_pylist(list(rows), schema))


def as_recorded(row: Row) -> Row:
    """Return a row with the recorded values in place of those of the replay, and without a limit.

    A forecast counts each attempt of a fetch, so that its requests differ from the recorded ones.
    """
    recorded = {name: row[f"recorded_{name}"] for name in _RECORDED}
    if recorded["requests"] is None:  # in open loop, each request is replayed once
        recorded |= {"requests": row["requests"], "amount": row["amount"]}
    return {**row, **dict.fromkeys(_ENDS), **recorded, "bound": None, "bound_changed": False}


def record_of(rows: Iterable[Row]) -> Row:
    """Return the row with the most requests, with its recorded values."""
    return max(map(as_recorded, rows), key=lambda row: int(row["requests"]))


def with_limits(rows: Iterable[Row], limits: Mapping[str, Iterable[Row]]) -> list[dict[str, Any]]:
    """Return the rows with the smallest limits of their entities, which may be None.

    limits: rows of `LIMITS_BY_ENTITY` by plan, of its entities.
    """
    found = {
        (plan, row["quota_type"], *_entity(row)): row for plan, of_plan in limits.items() for row in of_plan
    }
    with_them = []
    for row in rows:
        limit = found.get((row["plan"], row["quota_type"], *_entity(row)), {})
        with_them.append({**row, **{name: limit.get(name) for name in SMALLEST_LIMITS}})
    return with_them


def _both(name: str) -> tuple[str, str]:
    return name, f"recorded_{name}"


def _entity(row: Row) -> _Entity:
    return row["entity_user"], row["entity_client_id"], row.get("entity_tags")


def _names_text(names: Iterable[str | None]) -> str:
    """Return quoted names with a colon between them. `*` stands for None: no quoted name is equal to it."""
    return ":".join("*" if name is None else quote(name, safe="", errors="surrogatepass") for name in names)


def _compared(by_plan: Mapping[str, Row], named: Collection[tuple[str, _Entity]]) -> Compared:
    first, *_ = rows = list(by_plan.values())
    entities = {_entity(row) for row in rows}
    only = first["only_user"], first["only_client_id"], None
    user, client_id, tags = _entity(first) if len(entities) == 1 else only
    quota_type = first["quota_type"]
    is_named = any((quota_type, entity) in named for entity in entities)
    is_alone = first["only_user"] is not None and first["only_client_id"] is not None
    only_client = (first["only_user"], first["only_client_id"]) if is_alone else None
    return Compared(quota_type, user, client_id, tags, by_plan, is_named, only_client)


def _named(plans: Sequence[Plan]) -> set[tuple[str, _Entity]]:
    """Return the entities with a limit of their own, by quota type."""
    types = {key: quota_type for quota_type, key in KEY_OF_TYPE.items()}
    records = [record for plan in plans for record in plan.records or () if record.key in types]
    parts = [(types[record.key], dict(record.entity)) for record in records]
    of_groups = {
        (types[key], (None, None, group_tags(group))) for plan in plans for group, key in plan.groups.limits
    }
    return of_groups | {
        (quota_type, (names.get("user"), names.get("client-id"), None))
        for quota_type, names in parts
        if None not in names.values()
    }


# --- by column ------------------------------------------------------------------------------------------------------


class _Names(NamedTuple):
    """A column of names as numbers: 0 is null, the others are places in `names`, from 1."""

    numbers: Numbers
    names: pa.Array

    def indexes_of(self, names: Sequence[str | None]) -> Numbers:
        """Return the numbers of names, -1 for a name that does not occur."""
        found = pc.index_in(pa.array(names, pa.string()), value_set=self.names)
        numbers: Numbers = pc.fill_null(found, -2).to_numpy().astype(np.int32) + np.int32(1)
        numbers[[name is None for name in names]] = 0
        return numbers


def _names(table: pa.Table, name: str) -> _Names:
    encoded = table[name].combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], pa.string()).dictionary_encode()
    numbers = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int32) + np.int32(1)
    return _Names(numbers, encoded.dictionary)


def _groups(table: pa.Table) -> Numbers:
    """Return the number of the compared entity of each row."""
    only = [_names(table, name).numbers for name in _ONLY]
    is_alone = (only[0] > 0) & (only[1] > 0)

    def columns() -> Iterator[Numbers]:
        yield _names(table, "quota_type").numbers
        yield is_alone.astype(np.int32)
        for name, of_client in zip_longest(_ENTITY, only, fillvalue=np.int32(0)):
            yield np.where(is_alone, of_client, _names(table, str(name)).numbers)

    group = key_numbers(columns())
    of_plan = key_numbers([group, _names(table, "plan").numbers])
    if int(of_plan.max(initial=-1)) + 1 == len(group):
        return group
    _, first = np.unique(of_plan, return_index=True)
    is_again = np.ones(len(group), bool)
    is_again[first] = False  # the others were in force under two entities in turn, and get other groups
    entity = (_names(table, name).numbers[is_again] for name in _ENTITY)
    others = key_numbers([group[is_again], *entity])
    group[is_again] = int(group.max()) + 1 + others
    return group


def _ranked(table: pa.Table, group: Numbers, named: Collection[tuple[str, _Entity]]) -> pa.Table:
    """Return a row for each group: the columns of its rank, and whether it is of interest."""
    order = np.argsort(group, kind="stable")
    begins = np.flatnonzero(np.diff(group[order], prepend=-1))
    is_named = _is_named(table, named)
    entity = key_numbers(_names(table, name).numbers for name in _ENTITY)[order]
    is_one = _of_groups(np.minimum, entity, begins) == _of_groups(np.maximum, entity, begins)

    def largest(name: str) -> pa.Array:
        values = pc.fill_null(table[name], 0).to_numpy().astype(np.int64)[order]
        return compact_column(pa.array(_of_groups(np.maximum, values, begins)))

    counts = [f"{prefix}{name}" for prefix in ("", "recorded_") for name in _HELD_BACK]
    has_limit = pa.array(_of_groups(np.maximum, is_named[order].astype(np.int8), begins))
    held_back = [pc.not_equal(largest(name), 0) for name in (*counts, "throttled_requests_high")]
    return pa.table(
        {
            **{name: largest(name) for name in (*_RANKS, "requests")},
            "is_named": has_limit,
            "is_of_interest": reduce(pc.or_, held_back, pc.equal(has_limit, 1)),
            "is_one": is_one,
            "quota_type": table["quota_type"].take(pa.array(order[begins])),
            "row": order[begins].astype(np.int32),
            "group": group[order[begins]].astype(np.int32),
        }
    )


def _foremost(ranked: pa.Table, top: int) -> pa.Array:
    """Return the places of the first `top` by numbers, and of all that are equal to the last one."""
    found: list[Int64s] = []
    equal = np.arange(len(ranked))
    for name in _NUMBERS:
        wanted = top - sum(map(len, found))
        if len(equal) <= wanted:
            break
        values = ranked[name].to_numpy()[equal]
        last = np.partition(values, len(values) - wanted)[len(values) - wanted]
        found.append(equal[values > last])
        equal = equal[values == last]
    return pa.array(np.concatenate([*found, equal]))


def _with_names(ranked: pa.Table, table: pa.Table) -> pa.Table:
    """Return groups with names: of their entity or, if they have several, of their only client."""
    rows = table.select([*_ENTITY, *_ONLY]).take(ranked["row"])
    for name in ("user", "client_id", "tags"):
        of_entity = rows[f"entity_{name}"].cast(pa.string())
        of_client = rows[f"only_{name}"].cast(pa.string()) if f"only_{name}" in _ONLY else None
        ranked = ranked.append_column(
            name, pc.fill_null(pc.if_else(ranked["is_one"], of_entity, of_client), "")
        )
    return ranked.set_column(
        ranked.column_names.index("quota_type"), "quota_type", ranked["quota_type"].cast(pa.string())
    )


def _of_groups(function: np.ufunc, values: npt.NDArray[Any], begins: Int64s) -> npt.NDArray[Any]:
    reduced: npt.NDArray[Any] = function.reduceat(values, begins) if len(begins) else values
    return reduced


def _is_named(table: pa.Table, named: Collection[tuple[str, _Entity]]) -> Flags:
    """Return which rows are of entities with a limit of their own."""
    if not named:
        return np.zeros(len(table), bool)
    columns = [_names(table, name) for name in ("quota_type", *_ENTITY)]
    wanted = [(quota_type, *entity) for quota_type, entity in named]
    asked = [column.indexes_of([each[place] for each in wanted]) for place, column in enumerate(columns)]
    occur = np.all([numbers >= 0 for numbers in asked], axis=0)
    both = [
        np.concatenate([column.numbers, numbers[occur]])
        for column, numbers in zip(columns, asked, strict=True)
    ]
    rows = len(columns[0].numbers)
    number = key_numbers(both)
    return np.isin(number[:rows], number[rows:])
