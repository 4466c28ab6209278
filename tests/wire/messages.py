"""Messages for tests: made by Hypothesis from the definitions, and those a real broker was seen to exchange."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tidegate.wire import API_BY_KEY
from tidegate.wire.apis import Api, spoken_pairs
from tidegate.wire.definitions import Field, Layout, layout
from tidegate.wire.primitives import MAX_KEPT_TAGS

VECTORS = Path(__file__).parent.parent / "vectors" / "wire"
CUT_RECORDS = "bytes)"
HIDDEN_DIRECTORY = "<directory>"

INTEGERS = {
    "int8": (8, True),
    "int16": (16, True),
    "uint16": (16, False),
    "int32": (32, True),
    "int64": (64, True),
}


def all_layouts() -> Iterator[tuple[int, int, str]]:
    """Yield (api key, version, direction) of every message."""
    for key, version in spoken_pairs():
        yield key, version, "request"
        yield key, version, "response"


def title(case: tuple[int, int, str]) -> str:
    """Return a readable id for a parametrised test."""
    return f"{API_BY_KEY[case[0]].name}-v{case[1]}-{case[2]}"


@cache
def messages(api_key: int, api_version: int, direction: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of messages of one layout."""
    found: Layout = layout(api_key, api_version, direction)
    return _struct(found.fields, flexible=found.flexible)


def _struct(fields: tuple[Field, ...], *, flexible: bool) -> st.SearchStrategy[dict[str, Any]]:
    known = {field.tag for field in fields if field.tag is not None}
    unknown = st.dictionaries(
        st.integers(0, 200).filter(lambda tag: tag not in known),
        st.binary(max_size=3),
        min_size=1,
        max_size=MAX_KEPT_TAGS,
    )
    optional = {"_unknown_tags": unknown} if flexible else {}
    return st.fixed_dictionaries(
        {field.name: _field(field, flexible=flexible) for field in fields}, optional=optional
    )


def _field(field: Field, *, flexible: bool) -> st.SearchStrategy[Any]:
    if field.array:
        value = st.lists(_field(field.element(), flexible=flexible), max_size=2)
    elif field.type in INTEGERS:
        bits, signed = INTEGERS[field.type]
        value = (
            st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)
        )
    elif field.type == "struct":
        value = _struct(field.fields, flexible=flexible)
    else:
        value = {
            "bool": st.booleans(),
            "float64": st.floats(allow_nan=False),
            "string": st.text(max_size=4) | st.just("x" * 130),
            "bytes": st.binary(max_size=4),
            "records": st.binary(max_size=4) | st.just(b"r" * 1100),
            "uuid": st.uuids().map(str),
        }[field.type]
    if field.tag is not None:
        value = st.just(field.default) | value
    return st.none() | value if field.nullable else value


def plain(value: Any) -> Any:
    """Return a message in the form of the recorded `decoded`: bytes as hex, special floats as text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field that is not as expected: its path, and both values."""

    path: str
    expected: Any
    got: Any


def same(ours: Any, recorded: Any) -> bool:
    """Return whether a message in plain form is the recorded one: long records were cut, directories hidden."""
    return first_difference(ours, recorded) is None


def first_difference(ours: Any, recorded: Any, path: str = "") -> Difference | None:
    """Return the first field, in the recorded order, in which a message in plain form is not the recorded one."""
    if isinstance(ours, dict) and isinstance(recorded, dict):
        return _first_of_fields(ours, recorded, path)
    if isinstance(ours, list) and isinstance(recorded, list):
        pairs = enumerate(zip(ours, recorded, strict=False))
        found = (first_difference(mine, theirs, _below(path, at)) for at, (mine, theirs) in pairs)
        of_length = Difference(path=_below(path, "length"), expected=len(recorded), got=len(ours))
        return next(filter(None, found), of_length if len(ours) != len(recorded) else None)
    if isinstance(recorded, str) and recorded.endswith(CUT_RECORDS):
        shown, _, size = recorded.partition("...(")
        equal = isinstance(ours, str) and ours.startswith(shown) and len(ours) == 2 * int(size.split()[0])
    elif recorded == HIDDEN_DIRECTORY:
        equal = isinstance(ours, str)
    else:
        equal = bool(ours == recorded) and type(ours) is type(recorded)
    return None if equal else Difference(path=path, expected=recorded, got=ours)


def _first_of_fields(ours: dict[str, Any], recorded: dict[str, Any], path: str) -> Difference | None:
    for name in (*recorded, *(name for name in ours if name not in recorded)):
        if name not in ours or name not in recorded:
            values = [body.get(name, "no such field") for body in (recorded, ours)]
            return Difference(path=_below(path, name), expected=values[0], got=values[1])
        found = first_difference(ours[name], recorded[name], _below(path, name))
        if found:
            return found
    return None


def _below(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One request that a real broker was sent, and what it answered."""

    scenario: str
    where: str
    api_key: int
    version: int
    client_id: str | None
    correlation_id: int
    request: bytes
    request_plain: Any
    response: bytes | None
    response_plain: Any


@cache
def recorded(name: str) -> tuple[Recorded, ...]:
    """Return the requests of one file of recordings."""
    scenarios = json.loads((VECTORS / f"{name}.json").read_text())["scenarios"]
    return tuple(
        Recorded(
            scenario=scenario["name"],
            where=f"{name}: {scenario['name']}, step {place}",
            api_key=step["api_key"],
            version=step["version"],
            client_id=step["client_id"],
            correlation_id=step["correlation_id"],
            request=bytes.fromhex(step["request_hex"]),
            request_plain=step.get("request"),
            response=bytes.fromhex(step["response_hex"]) if "decoded" in step else None,
            response_plain=step.get("decoded"),
        )
        for scenario in scenarios
        for place, step in enumerate(scenario["steps"])
        if step["op"] == "request"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFrame:
    """Bytes that a real broker was sent as they are, without their length prefix, and its answer."""

    scenario: str
    content: bytes
    answer: bytes


@cache
def raw_frames(outcome: str) -> tuple[RawFrame, ...]:
    """Return the raw frames of all recordings that a broker met with `outcome`, those sent in one piece."""
    frames = []
    for path in sorted(VECTORS.glob("*.json")):
        for scenario in json.loads(path.read_text())["scenarios"]:
            for step in scenario["steps"]:
                if (
                    step["op"] == "raw"
                    and step["outcome"] == outcome
                    and scenario["name"] != "frame-in-pieces"
                ):
                    content = bytes.fromhex(step["raw_hex"])[4:] + bytes(step.get("pad_bytes") or 0)
                    answer = bytes.fromhex(step.get("response_hex") or "")
                    frames.append(RawFrame(scenario=scenario["name"], content=content, answer=answer))
    return tuple(frames)


def recorded_files() -> list[str]:
    """Return the names of the files of recordings."""
    return sorted(path.stem for path in VECTORS.glob("*.json"))


def has_throttle_time_ms(api: Api, api_version: int) -> bool:
    """Return whether responses of the version carry `throttle_time_ms`."""
    return api.throttle_time_ms_since is not None and api_version >= api.throttle_time_ms_since


def response_body_at(api_key: int, version: int) -> int:
    """Return where the body of a response begins, after the length prefix."""
    return 4 + API_BY_KEY[api_key].has_tagged_response_header(version)
