"""Write `src/tidegate/kafka_log/older_messages.json`: message versions that Kafka up to 4.0 spoke and 4.3 does not.

Run by `make older-messages`, after `make request-logs` has fetched the jars of both releases. The fields come from the
schemas in the released classes (`KafkaSchemas.java` prints them). Only APIs that `definitions.json` has are taken: what
brokers and controllers say to each other has no size in the usage record.
"""

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from make_codecs import Node, field_lines, merge

from tidegate.wire.definitions import table

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "src" / "tidegate" / "kafka_log" / "older_messages.json"
RELEASES = ("4.0.0", "3.9.1")
"""The first has early versions of share groups, the second every version that 4.0 removed (KIP-896)."""

_TYPES = {"boolean": "bool"}


def schemas(release: str) -> list[dict[str, Any]]:
    """Return the messages of a release, one entry a version. Raises `CalledProcessError` without its jars."""
    jars = ROOT / ".cache" / f"kafka-{release}" / "libs" / "*"
    program = ROOT / "scripts" / "KafkaSchemas.java"
    printed = subprocess.run(
        ["java", "-cp", str(jars), str(program)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return [json.loads(line) for line in printed.splitlines()]


def node(field: dict[str, Any]) -> Node:
    """Return a field of a schema as `make_codecs` holds one."""
    name = field["type"].replace("compact_", "").replace("nullable_", "")
    array = "[]" if name.startswith("[]") else ""
    element = name.removeprefix("[]")
    return Node(
        name=field["name"],
        type=array + _TYPES.get(element, element),
        nullable=field["nullable"],
        default=None,
        tag=None if field["tag"] < 0 else field["tag"],
        fields=tuple(node(inner) for inner in field.get("fields", ())),
    )


def main() -> int:
    """Write the table."""
    current = {api["key"]: api for api in table()["apis"]}
    found: dict[int, dict[str, dict[int, Any]]] = defaultdict(lambda: {"request": {}, "response": {}})
    for release in RELEASES:
        for schema in schemas(release):
            api = current.get(schema["key"])
            if api is not None and not api["min_version"] <= schema["version"] <= api["max_version"]:
                found[api["key"]][schema["direction"]].setdefault(schema["version"], schema)
    apis, messages = [], []
    for key, directions in sorted(found.items()):
        versions = sorted(directions["request"])
        first, last = versions[0], versions[-1]
        flexible = [v for v in versions if directions["request"][v]["flexible"]]
        apis.append(
            " "
            + json.dumps({
                "key": key, "name": current[key]["name"], "min_version": first, "max_version": last,
                "flexible_since": min(flexible, default=None),
            })
        )  # fmt: skip
        texts = []
        for direction, by_version in directions.items():
            trees = {v: tuple(node(f) for f in schema["fields"]) for v, schema in by_version.items()}
            lines = ",\n".join(field_lines(merge(trees), (first, last), "   "))
            texts.append(f'  "{direction}": [\n{lines}]')
        messages.append(f' "{key}": {{\n' + ",\n".join(texts) + "}")
    TABLE.write_text(
        '{"apis": [\n' + ",\n".join(apis) + '],\n"messages": {\n' + ",\n".join(messages) + "}}\n"
    )
    print(f"wrote {TABLE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
