"""One who changes quotas and settings, one thing at a time, and knows which hold."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tests.server.memory_network import UNLIMITED
from tests.simulation.auditor import Auditor, Sent
from tests.simulation.callbacks import CALLBACK_CLASS, CALLBACK_SETTINGS, LOADABLE, NOT_LOADABLE
from tests.simulation.clients import CLIENT_IDS, HOSTS, USERS, Connect, Connected
from tests.simulation.rules import (
    BURST_S,
    CAP_MS,
    DEBT_S,
    DEFAULT_NAME,
    EXEMPT,
    INT_MAX,
    OBSERVE,
    SMOOTH,
    Names,
    Rules,
    static_quotas,
)

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
)
from tidegate.wire import encode_request, read_response

__all__ = ["SETTINGS", "Administrator"]

Entity = tuple[tuple[str, str | None], ...]
_RATES = {
    "producer_byte_rate": (2_000.0, 20_000.0, 200_000.0, 2e6),
    "consumer_byte_rate": (2_000.0, 20_000.0, 200_000.0, 2e6),
    "request_percentage": (0.01, 0.5, 5.0, 50.0),
    "controller_mutation_rate": (0.1, 1.0, 5.0),
    "connection_creation_rate": (1.0, 2.0, 10.0),
}
_ENTITY_TYPES = ("user", "client-id")
_SOME_CLIENTS = (
    "all", "user=alice", "client-id=c1", "client-id=<default>", "user=bob%20b;user=carol,client-id=c%2A3",
    "user=<default>,client-id=c2;user=ANONYMOUS",
)  # fmt: skip
SETTINGS: Mapping[str, tuple[str, ...]] = {
    OBSERVE: _SOME_CLIENTS,
    EXEMPT: _SOME_CLIENTS[1:],
    SMOOTH: _SOME_CLIENTS,
    CAP_MS: ("1", "300", "5000", "20000"),
    BURST_S: ("2", "5"),
    DEBT_S: ("1", "10"),
    "max.connections": (str(INT_MAX), "15", "20"),
    "max.connections.per.ip": (str(INT_MAX), "4", "6"),
    "max.connections.per.ip.overrides": ("192.0.2.1:2,192.0.2.2:20", "192.0.2.99:3"),
    "max.connection.creation.rate": (str(INT_MAX), "3", "10"),
}
"""Settings that change while a node runs, and what they change to."""
_CALM = (EXEMPT, *(name for name in SETTINGS if name.startswith("max.connection")))
_REFUSED = (
    ("max.connections", "-1"), ("max.connections", "many"), (OBSERVE, "alice"), (CAP_MS, "-1"), ("node.id", "7"),
    ("max.connections.per.ip.overrides", "192.0.2.1"), *((CALLBACK_CLASS, name) for name in NOT_LOADABLE),
)  # fmt: skip
_NODE = 4
_KAFKA_SETS = "min.insync.replicas"  # for the cluster, by itself
_SOURCES = {2: True, 3: False}  # of a node's own value, and of one for all nodes
_FEW = 10

Change = dict[Any, Any]
"""New values by what has them; None where it goes."""


class Administrator(Connected):
    """Sets and removes quotas of all levels and settings of nodes.

    given: the settings of nodes at their start. quotas, settings: what was acknowledged; a setting is that of a node's
    number, or of all (""). is_calm: goes no further beyond Kafka than exempt clients.
    """

    USER, CLIENT_ID, HOST = "admin", "admin", "192.0.2.99"

    def __init__(self, auditor: Auditor, connect: Connect, rng: Random, *, is_exact: bool) -> None:
        super().__init__(auditor, connect, rng)
        self.given: Mapping[str, str] = {}
        self.quotas: dict[tuple[Entity, str], float] = {}
        self.settings: dict[tuple[str, str], str] = {}
        self.is_calm = False
        self._is_exact = is_exact
        self._unsure: tuple[dict[Any, Any], Change] | None = None
        self._on_answer: Callable[[bytes], None] | None = None
        self._node_id = 1

    def act(self) -> int:
        """Change something, or look whether what was acknowledged holds."""
        rng = self._rng
        if self.line is None:
            if self._unsure is None:
                self._node_id = rng.choice(self._auditor.nodes).node_id
            self.line = self._connect(self.USER, self.HOST, UNLIMITED, UNLIMITED, self._node_id)
            self._on_answer = None
            return 1
        for answer, _ in self._take(UNLIMITED):
            on_answer, self._on_answer = self._on_answer, None
            assert on_answer is not None
            on_answer(answer)
        if self.line.closed:
            self._let_go()
            return 50
        if self._on_answer is None:
            self._ask()
        many = len(self.quotas) >= _FEW or len(self.settings) >= _FEW
        return 1 + int(rng.expovariate(1 / (3000 if many else 200)))

    def _ask(self) -> None:
        """Ask for one more thing: what is not sure, first."""
        rng = self._rng
        if self._unsure is not None:
            (self._describe_quotas if self._unsure[0] is self.quotas else self._describe_settings)()
            return
        self._check_in_force()
        rng.choices(
            (
                self._alter_quotas,
                self._alter_settings,
                self._describe_quotas,
                self._describe_settings,
                self._ask_the_impossible,
            ),
            (12, 6, 1, 1, 1),
        )[0]()

    def _send(self, api_key: int, body: dict[str, Any], on_answer: Callable[[dict[str, Any]], None]) -> None:
        assert self.line is not None
        number = self._auditor.next_id()
        frame = encode_request(api_key, 1, number, self.CLIENT_ID, body)
        flexible = api_key != DESCRIBE_CONFIGS
        sent = Sent(number, api_key, 1, self.line, len(frame), wait_ms=20_000)
        self._on_answer = lambda answer: on_answer(read_response(api_key, 1, answer, 5 if flexible else 4))
        self._auditor.on_sent(sent)
        self.line.client_plan([sent])
        self.line.client_send(frame)
        self._auditor.seen["requests"] += 1

    # --- quotas -----------------------------------------------------------------------------------------------------

    def _alter_quotas(self) -> None:
        """Change one quota of anybody but the administrator."""
        rng = self._rng
        value: float | None
        if rng.random() < len(self.quotas) / 24:
            (entity, key), value = rng.choice(sorted(self.quotas, key=repr)), None
        else:
            entity, key = self._some_entity(), rng.choice(tuple(_RATES)[:4])
            if entity[0][0] == "ip":
                key = "connection_creation_rate"
            value = rng.choice(_RATES[key])
        self._unsure = self.quotas, {(entity, key): value}
        self._auditor.note(f"quota {entity} {key} {value}")
        self._auditor.seen[
            "level " + ", ".join(kind if name else f"default {kind}" for kind, name in entity)
        ] += 1
        parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
        op = {"key": key, "value": value or 0.0, "remove": value is None}
        body = {"entries": [{"entity": parts, "ops": [op]}], "validate_only": False}
        self._send(ALTER_CLIENT_QUOTAS, body, lambda answer: self._on_altered(answer["entries"]))

    def _some_entity(self) -> Entity:
        rng = self._rng
        if rng.random() < 0.1:
            return (("ip", rng.choice((None, *HOSTS))),)
        kinds = rng.choice((("user",), ("client-id",), _ENTITY_TYPES, _ENTITY_TYPES))
        names = {"user": (None, *USERS), "client-id": (None, *filter(None, CLIENT_IDS))}
        return tuple((kind, rng.choice(names[kind])) for kind in kinds)

    def _describe_quotas(self) -> None:
        body = {"components": [], "strict": False}
        self._send(DESCRIBE_CLIENT_QUOTAS, body, lambda answer: self._compare_quotas(answer["entries"]))

    def _compare_quotas(self, entries: list[dict[str, Any]]) -> None:
        found = {}
        for entry in entries:
            parts = {part["entity_type"]: part["entity_name"] for part in entry["entity"]}
            entity = tuple((kind, parts[kind]) for kind in ("user", "client-id", "ip") if kind in parts)
            found.update({(entity, value["key"]): value["value"] for value in entry["values"]})
        self._compare(self.quotas, found, lambda one: True)

    # --- settings ---------------------------------------------------------------------------------------------------

    def _alter_settings(self) -> None:
        """Change a setting of the node or of all nodes, or everything that is its callback's."""
        rng = self._rng
        node = rng.choice(("", str(self._node_id)))
        changes: dict[str, str | None]
        if rng.random() < 0.35 and not (self._is_exact or self.is_calm):
            changes = {
                name: None
                for owner, name in self.settings
                if owner == node and name.startswith(CALLBACK_SETTINGS)
            }
            if rng.random() < 0.7:
                changes |= rng.choice(LOADABLE)
        elif rng.random() < len(self.settings) / 12:
            node, name = rng.choice(sorted(self.settings))
            if node not in ("", str(self._node_id)) or name.startswith(CALLBACK_SETTINGS):
                return
            changes = {name: None}
        else:
            name = rng.choice([name for name in SETTINGS if not self.is_calm or name in _CALM])
            changes = {name: rng.choice(SETTINGS[name])}
        validate_only = rng.random() < 0.1
        if not validate_only:
            self._unsure = self.settings, {(node, name): text for name, text in changes.items()}
        self._alter(node, changes, self._on_altered, validate_only=validate_only)

    def _alter(
        self,
        node: str,
        changes: Mapping[str, str | None],
        on_answer: Callable[[list[dict[str, Any]]], None],
        *,
        validate_only: bool = False,
    ) -> None:
        self._auditor.note(f"settings of {node!r}: {changes}, {validate_only=}")
        for name in changes:
            self._auditor.seen[f"setting {name}"] += 1
        configs = [
            {"name": name, "config_operation": 1 if text is None else 0, "value": text}
            for name, text in changes.items()
        ]
        resource = {"resource_type": _NODE, "resource_name": node, "configs": configs}
        body = {"resources": [resource], "validate_only": validate_only}
        self._send(INCREMENTAL_ALTER_CONFIGS, body, lambda answer: on_answer(answer["responses"]))

    def _ask_the_impossible(self) -> None:
        name, text = self._rng.choice(_REFUSED)
        node = self._rng.choice(("", str(self._node_id)))
        hidden = any(owner and key == CALLBACK_CLASS for owner, key in self.settings)
        if name == CALLBACK_CLASS and not node and hidden:
            return  # a class that is not in force is not loaded
        self._alter(node, {name: text}, self._on_refused)

    def _on_refused(self, responses: list[dict[str, Any]]) -> None:
        self._auditor.seen["refused change"] += 1
        if not responses[0]["error_code"]:
            self._auditor.fail(self.line, "a change that cannot be was acknowledged")

    def _describe_settings(self) -> None:
        resource = {"resource_type": _NODE, "resource_name": str(self._node_id), "configuration_keys": None}
        body = {"resources": [resource], "include_synonyms": True}
        self._send(DESCRIBE_CONFIGS, body, lambda answer: self._compare_settings(answer["results"][0]))

    def _compare_settings(self, result: dict[str, Any]) -> None:
        """Compare what was set for this node and for all; the values of a callback's settings are not told."""
        found = {
            (str(self._node_id) if _SOURCES[synonym["source"]] else "", config["name"]): synonym["value"]
            for config in result["configs"]
            for synonym in config["synonyms"]
            if synonym["source"] in _SOURCES and config["name"] != _KAFKA_SETS
        }
        self._compare(self.settings, found, lambda one: one[0] in ("", str(self._node_id)))

    # --- both -------------------------------------------------------------------------------------------------------

    def _on_altered(self, results: list[dict[str, Any]]) -> None:
        """A change was acknowledged."""
        if results[0]["error_code"]:
            self._auditor.fail(self.line, f"a change is refused: {results[0]}")
        if self._unsure is not None:
            self._hold()

    def _hold(self) -> None:
        assert self._unsure is not None
        known, change = self._unsure
        self._unsure = None
        for one, value in change.items():
            if value is None:
                known.pop(one, None)
            else:
                known[one] = value

    def _compare(self, known: dict[Any, Any], found: dict[Any, Any], concerns: Callable[[Any], bool]) -> None:
        """What was acknowledged holds; what was not may hold. A value of None is one that is not told."""
        if self._unsure is not None and self._unsure[0] is known:
            if all(
                (one in found) is (value is not None) and found.get(one) in (None, value)
                for one, value in self._unsure[1].items()
            ):
                self._hold()
            self._unsure = None
        expected = {one: value for one, value in known.items() if concerns(one)}
        if found.keys() != expected.keys() or any(found[one] not in (None, expected[one]) for one in found):
            self._auditor.fail(self.line, f"{found} is described, {expected} was acknowledged")

    def in_force(self, node_id: int) -> dict[str, str]:
        """Return the settings of a node: its own before those of all, and those before what was given.

        Changed extensions of quotas are left out where Kafka is followed exactly.
        """
        texts = dict(self.given)
        ignored = (
            (OBSERVE, EXEMPT, SMOOTH, CAP_MS, BURST_S, DEBT_S)
            if texts.get("tidegate.kafka.exact") == "true"
            else ()
        )
        for owner in ("", str(node_id)):
            texts |= {
                name: text
                for (of, name), text in self.settings.items()
                if of == owner and name not in ignored
            }
        return texts

    def _check_in_force(self) -> None:
        """Nothing is under way: what was acknowledged is what each node has said that it put in force."""
        quotas = {
            (_names(entity), key): value
            for (entity, key), value in self.quotas.items()
            if entity[0][0] != "ip"
        }
        for node in self._auditor.nodes:
            texts = self.in_force(node.node_id)
            if node.rules != Rules.of(texts):
                self._auditor.fail(
                    self.line, f"{node.rules} are in force at {node.node_id}, where {texts} are set"
                )
            if node.quotas != {**static_quotas(self.given), **quotas}:
                self._auditor.fail(self.line, f"{node.quotas} are in force, {quotas} were acknowledged")
            texts["listeners"] = node.settings()["listeners"]  # with ports of its own
            followed = {name: text for name, text in node.settings().items() if name in texts}
            if followed != texts:
                self._auditor.fail(
                    self.line, f"{followed} are followed at {node.node_id}, where {texts} are set"
                )


def _names(entity: Entity) -> Names:
    parts = {kind: DEFAULT_NAME if name is None else name for kind, name in entity}
    return parts.get("user"), parts.get("client-id")
