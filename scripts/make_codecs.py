"""Write `src/tidegate/wire/definitions.json`: every message that a broker speaks, one line per field.

Run by `make codecs`. Two sources: kio's message classes (a development dependency, generated from Kafka's own
message files) give the fields, `tests/vectors/api-versions.json` (taken from Kafka 4.3.1's released classes)
gives the APIs. Nothing here is imported at run time.

kio has one class tree per version. The trees of one message are merged into one list of fields with version
ranges, as in Kafka's own files; the merged list is then taken apart again and compared with every tree.
"""

import dataclasses
import datetime
import json
import sys
import typing
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kio.index import load_request_schema, load_response_schema

ROOT = Path(__file__).resolve().parent.parent
API_FACTS = ROOT / "tests" / "vectors" / "api-versions.json"
TABLE = ROOT / "src" / "tidegate" / "wire" / "definitions.json"

API_KEYS = (
    "key",
    "name",
    "min_version",
    "max_version",
    "unstable_versions",
    "flexible_since",
    "response_header_flexible_since",
    "throttle_time_ms_since",
    "java_client_backs_off_since",
    "cluster_action",
    "forwardable",
    "listeners",
)
WIRE_TYPES = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NO_DATE = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One field of a message in one version, or merged over several."""

    name: str
    type: str
    nullable: bool
    default: str | None
    tag: int | None
    fields: tuple["Node", ...] = ()
    versions: tuple[int, int] | None = None

    def key(self) -> tuple[object, ...]:
        """Return what two versions must agree on to share one line."""
        return (self.name, self.type, self.nullable, self.default, self.tag)


def field_node(field: dataclasses.Field[Any]) -> Node:
    """Return the node of one kio dataclass field."""
    kafka_type = field.metadata.get("kafka_type")
    element, is_array, nullable = unwrap(field.type)
    entity = element if dataclasses.is_dataclass(element) else None
    wire_type = "struct" if entity else WIRE_TYPES.get(str(kafka_type), str(kafka_type))
    if wire_type == "uuid" or str(kafka_type) == "datetime_i64":
        nullable = nullable and is_array
    return Node(
        name=field.name + ("_ms" if str(kafka_type).startswith("timedelta") else ""),
        type="[]" * is_array + wire_type,
        nullable=nullable,
        default=default_text(field, is_array=is_array, wire_type=wire_type, nullable=nullable),
        tag=field.metadata.get("tag"),
        fields=entity_nodes(entity) if entity else (),
    )


def unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """Return (element type, is an array, may be null) of a kio annotation."""
    nullable = False
    if typing.get_origin(annotation) is not tuple and type(None) in typing.get_args(annotation):
        nullable = True
        (annotation,) = (arg for arg in typing.get_args(annotation) if arg is not type(None))
    if typing.get_origin(annotation) is not tuple:
        return annotation, False, nullable
    element, _, _ = unwrap(typing.get_args(annotation)[0])
    return element, True, nullable


def entity_nodes(entity: Any) -> tuple[Node, ...]:
    """Return the nodes of a kio dataclass."""
    return tuple(field_node(field) for field in dataclasses.fields(entity))


def default_text(field: Any, *, is_array: bool, wire_type: str, nullable: bool) -> str | None:
    """Return the default as JSON text; None where Kafka names none (a writer must then be given a value)."""
    if field.default is dataclasses.MISSING or (wire_type == "struct" and not is_array and not nullable):
        return None
    if field.default == () and "tag" not in field.metadata:
        return None  # kio gives every array of plain values this default; Kafka does not
    return json.dumps(plain(field.default, wire_type))


def plain(value: Any, wire_type: str) -> Any:
    """Return a kio default as the value that our messages hold."""
    if value is None:
        return {"uuid": str(uuid.UUID(int=0)), "int64": NO_DATE}.get(wire_type)
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(milliseconds=1)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return list(value) if isinstance(value, tuple) else value


def merge(trees: Mapping[int, tuple[Node, ...]]) -> tuple[Node, ...]:
    """Return one list of fields that holds the lists of all versions, each node with its versions."""
    order: list[tuple[object, ...]] = []
    found: dict[tuple[object, ...], dict[int, Node]] = {}
    for version, nodes in sorted(trees.items()):
        place = 0
        for node in nodes:
            if node.key() not in found:
                found[node.key()] = {}
                order.insert(place, node.key())
            place = order.index(node.key()) + 1
            found[node.key()][version] = node
    return tuple(merged_node(found[key]) for key in order)


def merged_node(by_version: Mapping[int, Node]) -> Node:
    """Return the node of several versions, its fields merged in turn."""
    first, last = min(by_version), max(by_version)
    if len(by_version) != last - first + 1:
        raise ValueError(f"{by_version[first].name} is missing in a version between {first} and {last}")
    fields = merge({version: node.fields for version, node in by_version.items()})
    return dataclasses.replace(by_version[first], fields=fields, versions=(first, last))


def at_version(nodes: Iterable[Node], version: int) -> tuple[Node, ...]:
    """Return the fields of one version, as kio has them: the inverse of `merge`."""
    return tuple(
        dataclasses.replace(node, fields=at_version(node.fields, version), versions=None)
        for node in nodes
        if node.versions is not None and node.versions[0] <= version <= node.versions[1]
    )


def field_lines(nodes: Iterable[Node], versions: tuple[int, int], indent: str) -> list[str]:
    """Return one line of JSON per field, nested ones indented."""
    blocks = []
    for node in nodes:
        facts: dict[str, Any] = {"name": node.name, "type": node.type}
        if node.versions not in (None, versions):
            facts["versions"] = node.versions
        if node.nullable:
            facts["nullable"] = True
        if node.default is not None:
            facts["default"] = json.loads(node.default)
        if node.tag is not None:
            facts["tag"] = node.tag
        line = indent + json.dumps(facts)
        if node.fields:
            inner = field_lines(node.fields, node.versions or versions, indent + " ")
            line = line[:-1] + ', "fields": [\n' + ",\n".join(inner) + "]}"
        blocks.append(line)
    return blocks


def message_lines(api: Mapping[str, Any], direction: str) -> str:
    """Return the merged and checked definition of one message as JSON text."""
    load = load_request_schema if direction == "request" else load_response_schema
    versions = (api["min_version"], api["max_version"])
    trees: dict[int, tuple[Node, ...]] = {}
    for version in range(versions[0], versions[1] + 1):
        entity: Any = load(api["key"], version)
        flexible = api["flexible_since"] is not None and version >= api["flexible_since"]
        if entity.__flexible__ != flexible:
            raise ValueError(f"kio and Kafka disagree on whether {entity.__name__} v{version} is flexible")
        trees[version] = entity_nodes(entity)
    merged = merge(trees)
    for version, tree in trees.items():
        if at_version(merged, version) != tree:
            raise ValueError(f"{api['name']} {direction} v{version} cannot be taken out of the merged table")
    return f'  "{direction}": [\n' + ",\n".join(field_lines(merged, versions, "   ")) + "]"


def table_text() -> str:
    """Return the whole table as it is kept in the source tree."""
    facts = json.loads(API_FACTS.read_text())["apis"]
    apis = [api for api in facts if "broker" in api["listeners"]]
    api_lines = [" " + json.dumps({key: api[key] for key in API_KEYS}) for api in apis]
    messages = [
        f' "{api["key"]}": {{\n{message_lines(api, "request")},\n{message_lines(api, "response")}}}'
        for api in apis
    ]
    return '{"apis": [\n' + ",\n".join(api_lines) + '],\n"messages": {\n' + ",\n".join(messages) + "}}\n"


def main() -> int:
    """Write the table; with `--check` only say whether it is up to date."""
    text = table_text()
    if "--check" in sys.argv[1:]:
        return 0 if TABLE.read_text() == text else 1
    TABLE.write_text(text)
    print(f"wrote {TABLE.relative_to(ROOT)}: {len(text.splitlines())} lines, {len(text)} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
