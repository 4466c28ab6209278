"""Stored definitions: what the vectors leave out, and a state machine against a naive model."""

import contextlib
import json
import math
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidegate import error_codes
from tidegate.in_slices import run_at_once
from tidegate.quota.admin.definition_order import definition_bytes
from tidegate.quota.admin.definitions import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    MAX_RECORDS_PER_ALTER,
    Alteration,
    AlterOutcome,
    FilterComponent,
    QuotaDefinitions,
    QuotaRecord,
    entity_parts,
    is_ip_address,
    visited_parts,
)
from tidegate.quota.admin.java_hash import hash_map_order
from tidegate.quota.admin.sanitizer import sanitize
from tidegate.quota.managers.quota_managers import QuotaManagers

ALICE = (("user", "alice"),)
NAN = float("nan")


def _alter(
    definitions: QuotaDefinitions, *ops: tuple[str, float | None], entity: tuple = ALICE
) -> AlterOutcome:
    outcome = run_at_once(definitions.alter_in_slices([Alteration(entity=entity, ops=ops)]))
    definitions.apply(outcome.records)
    return outcome


def test_alter_changes_nothing_until_applied() -> None:
    """What was decided holds only once its records, which were stored first, are applied."""
    definitions = QuotaDefinitions()
    outcome = run_at_once(
        definitions.alter_in_slices([Alteration(entity=ALICE, ops=[("producer_byte_rate", 1.0)])])
    )
    assert len(definitions) == 0
    definitions.apply(outcome.records)
    assert definitions.values(ALICE) == {"producer_byte_rate": 1.0}


def test_validate_only_gives_results_without_records() -> None:
    """The same verdict, nothing to store."""
    alterations = [Alteration(entity=ALICE, ops=[("producer_byte_rate", 1.0), ("bogus", None)])]
    definitions = QuotaDefinitions()
    outcome = run_at_once(definitions.alter_in_slices(alterations, validate_only=True))
    assert outcome.results == run_at_once(definitions.alter_in_slices(alterations)).results
    assert outcome.records == ()


def test_nan_is_accepted_and_equal_to_itself() -> None:
    """As in Kafka: NaN passes every comparison, and setting it again writes nothing."""
    definitions = QuotaDefinitions()
    assert len(_alter(definitions, ("producer_byte_rate", NAN), ("request_percentage", NAN)).records) == 2
    again = _alter(definitions, ("producer_byte_rate", NAN), ("request_percentage", NAN))
    assert (again.results[0].error_code, again.records) == (error_codes.NONE, ())
    assert math.isnan(definitions.values(ALICE)["producer_byte_rate"])


def test_entity_vanishes_with_its_last_key() -> None:
    """Removing the only key leaves no trace, and removing it again is fine."""
    definitions = QuotaDefinitions()
    _alter(definitions, ("producer_byte_rate", 5.0))
    assert _alter(definitions, ("producer_byte_rate", None)).records[0].value is None
    assert (len(definitions), list(definitions)) == (0, [])
    assert _alter(definitions, ("producer_byte_rate", None)).records == ()
    definitions.apply([QuotaRecord(entity=ALICE, key="producer_byte_rate", value=None)])
    assert len(definitions) == 0


def test_records_rebuild_the_definitions() -> None:
    """What `records` yields, applied to an empty store, is the same store."""
    definitions = QuotaDefinitions()
    _alter(definitions, ("producer_byte_rate", 5.0), ("request_percentage", 50.0))
    _alter(definitions, ("connection_creation_rate", 3.0), entity=(("ip", None),))
    copy = QuotaDefinitions()
    copy.apply(definitions.records())
    assert {entity: dict(copy.values(entity)) for entity in copy} == {
        entity: dict(definitions.values(entity)) for entity in definitions
    }


def test_batch_that_is_too_large_fails_as_a_whole() -> None:
    """One record past the bound, and every entity is answered with the policy violation."""
    many = [
        Alteration(entity=[("user", f"u{number}")], ops=[("producer_byte_rate", 1.0)])
        for number in range(MAX_RECORDS_PER_ALTER + 1)
    ]
    definitions = QuotaDefinitions()
    assert len(run_at_once(definitions.alter_in_slices(many[:-1])).records) == MAX_RECORDS_PER_ALTER
    outcome = run_at_once(definitions.alter_in_slices(many))
    assert outcome.records == ()
    assert {(one.error_code, one.error_message) for one in outcome.results} == {
        (error_codes.POLICY_VIOLATION, "Request parameters do not satisfy the configured policy.")
    }


def test_definitions_have_a_bound_in_bytes() -> None:
    """Past it new ones are refused with the reason; changes and removals are not, and make room."""
    each_bytes = definition_bytes((("user", "u0"),))
    definitions = QuotaDefinitions(max_bytes=3 * each_bytes)
    alterations = [
        Alteration(entity=[("user", f"u{number}")], ops=[("producer_byte_rate", 1.0)]) for number in range(5)
    ]
    outcome = run_at_once(definitions.alter_in_slices(alterations))
    assert [one.error_code for one in outcome.results] == [error_codes.NONE] * 3 + [
        error_codes.POLICY_VIOLATION
    ] * 2
    definitions.apply(outcome.records)
    outcome = run_at_once(definitions.alter_in_slices(alterations[3:]))
    message = f"The quota definitions take {3 * each_bytes} bytes; there is room for {3 * each_bytes}"
    assert (outcome.results[0].error_message, outcome.records) == (message, ())
    assert _alter(definitions, ("producer_byte_rate", 2.0), entity=(("user", "u0"),)).records
    assert _alter(definitions, ("producer_byte_rate", None), entity=(("user", "u0"),)).records
    assert (
        run_at_once(definitions.alter_in_slices(alterations[3:4])).results[0].error_code == error_codes.NONE
    )


def test_what_is_counted_is_no_less_than_the_memory_definitions_take() -> None:
    """Here, with their manager, and in the usage record, whose names are longer."""
    for name in ("client-{}", "{}" + "\ufffd" * 500, "{} " + "/" * 300):
        records = [
            QuotaRecord(
                entity=(("client-id", name.format(number)),), key="producer_byte_rate", value=1e3 + number
            )
            for number in range(500)
        ]
        counted_bytes = sum(definition_bytes(record.entity) for record in records)
        tracemalloc.start()
        definitions, managers, rows = QuotaDefinitions(), QuotaManagers(), {}
        for record in records:
            entity = (("client-id", "".join(record.entity[0][1])),)
            record = QuotaRecord(entity=entity, key="".join(record.key), value=record.value)
            definitions.apply([record])
            managers.apply(record)
            rows[None, sanitize(entity[0][1]), None, record.key] = record.value
        used_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert used_bytes < counted_bytes


def test_names_that_no_answer_could_hold_are_refused() -> None:
    """Longer than the protocol can carry, or no text at all; the longest that it can is fine."""
    for name, code in (
        ("x" * 32_767, 0),
        ("x" * 32_768, 42),
        ("\ufffd" * 12_000, 42),
        ("\ud800", 42),
        ("é" * 16_383, 0),
    ):
        outcome = run_at_once(
            QuotaDefinitions().alter_in_slices(
                [Alteration(entity=[("user", name)], ops=[("producer_byte_rate", 1.0)])]
            )
        )
        assert outcome.results[0].error_code == code


def test_the_order_is_that_of_kafka() -> None:
    """What a real broker described after each of thirty requests: entities, their parts and their keys in its order."""
    definitions = QuotaDefinitions()
    for step in json.loads((Path(__file__).parent / "described_order.json").read_text())["steps"]:
        outcome = run_at_once(
            definitions.alter_in_slices(
                [Alteration(entity=entity, ops=ops) for entity, ops in step["alterations"]]
            )
        )
        definitions.apply(outcome.records)
        described = [
            [[list(part) for part in entity], list(values)]
            for entity, values in run_at_once(definitions.describe_in_slices([])).entries
        ]
        assert described == step["described"]


def test_a_description_is_of_one_moment() -> None:
    """What is changed between its slices is not in it."""
    definitions = QuotaDefinitions()
    names = [(("user", f"u{number}"),) for number in range(1_000)]
    definitions.apply([QuotaRecord(entity=entity, key="producer_byte_rate", value=1.0) for entity in names])
    work = definitions.describe_in_slices([])
    for _ in range(5):
        next(work)
    definitions.apply(
        [QuotaRecord(entity=entity, key="producer_byte_rate", value=2.0) for entity in names[:500]]
    )
    definitions.apply(
        [QuotaRecord(entity=entity, key="producer_byte_rate", value=None) for entity in names[500:]]
    )
    found = run_at_once(work)
    assert {entity: values["producer_byte_rate"] for entity, values in found.entries} == dict.fromkeys(
        names, 1.0
    )
    assert len(definitions) == 500


def test_thousands_of_keys_of_one_entity_are_looked_at_in_slices() -> None:
    """The error is that of the key that Kafka comes to first; removals of unknown keys are none."""
    keys = [f"bogus-{number}" for number in range(5_000)]
    alteration = Alteration(entity=ALICE, ops=[(key, 1.0) for key in keys])
    work = QuotaDefinitions().alter_in_slices([alteration])
    steps = 0
    with contextlib.suppress(StopIteration):
        while True:
            next(work)
            steps += 1
    assert steps > 5
    first = hash_map_order(keys, initial_capacity=len(keys))[0]
    message = run_at_once(QuotaDefinitions().alter_in_slices([alteration])).results[0].error_message
    assert message == f"Invalid configuration key {first}"
    removals = Alteration(entity=ALICE, ops=[(key, None) for key in keys])
    assert (
        run_at_once(QuotaDefinitions().alter_in_slices([removals])).results[0].error_code == error_codes.NONE
    )


def test_host_names_are_asked_of_the_resolver() -> None:
    """The engine asks no name server: who knows names hands in a function."""
    alteration = Alteration(entity=[("ip", "broker.test")], ops=[("connection_creation_rate", 1.0)])
    refused = run_at_once(QuotaDefinitions().alter_in_slices([alteration])).results[0]
    assert refused.error_message == "broker.test is not a valid IP or resolvable host."
    outcome = run_at_once(
        QuotaDefinitions().alter_in_slices([alteration], is_known_host=lambda name: name == "broker.test")
    )
    assert outcome.results[0].error_code == error_codes.NONE


def test_values_given_out_do_not_change_the_store() -> None:
    """The values of a description are read-only."""
    definitions = QuotaDefinitions()
    _alter(definitions, ("producer_byte_rate", 5.0))
    [(_, values)] = run_at_once(definitions.describe_in_slices([])).entries or ()
    with pytest.raises(TypeError):
        values["producer_byte_rate"] = 6.0
    assert definitions.values(ALICE) == {"producer_byte_rate": 5.0}


@pytest.mark.parametrize(
    ("entity", "parts"),
    [
        ([("ip", "bob"), ("user", "ü")], "user=ü, ip=bob"),
        ([("ip", "*"), ("client-id", "a"), ("user", "ü")], "client-id=a, user=ü, ip=*"),
        ([("client-id", "127.0.0.1"), ("", None)], "client-id=127.0.0.1, =null"),
        ([("", None), ("client-id", "127.0.0.1")], "=null, client-id=127.0.0.1"),
    ],
)
def test_parts_are_named_in_the_order_of_java(entity: list[tuple[str, str | None]], parts: str) -> None:
    """Of a hash map that is made for as many parts as there are; seen on Kafka 4.3.1."""
    alteration = Alteration(entity=entity, ops=[("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0)])
    (found,) = run_at_once(QuotaDefinitions().alter_in_slices([alteration])).results
    assert found.error_message == f"Ignoring duplicate entity ClientQuotaEntity(entries={{{parts}}})"


def test_first_mistake_in_an_entity_is_that_of_kafka() -> None:
    """It visits the parts in the order of a hash map, too."""
    entity = [("user", ""), ("nonsense", "x")]
    for parts in (entity, entity[::-1]):
        (found,) = run_at_once(QuotaDefinitions().alter_in_slices([Alteration(entity=parts, ops=[])])).results
        assert found.error_message == "Empty user not supported"


def test_long_types_stay_in_the_order_of_the_request() -> None:
    """Hashing names that can be no type would take its time."""
    entity = [("y" * 300, "1"), ("x" * 300, "2")]
    assert visited_parts(dict(entity), count=len(entity)) == tuple(entity)


def test_parts_are_sorted_and_the_last_of_a_type_wins() -> None:
    """As a map decoded from the wire."""
    assert entity_parts([("user", "a"), ("client-id", None), ("user", "b")]) == (
        ("client-id", None),
        ("user", "b"),
    )


@pytest.mark.parametrize(
    ("name", "known"),
    [("::1", True), ("10.0.0.1", True), ("10.0.0", False), ("", False), ("localhost", False)],
)
def test_addresses_are_known_without_asking(name: str, known: bool) -> None:
    """IPv4 and IPv6 in full, nothing else."""
    assert is_ip_address(name) is known


KINDS = st.sampled_from(["user", "client-id", "ip"])
NAMES = st.sampled_from([None, "a", "b", "10.0.0.1", ""])
ENTITIES = st.dictionaries(KINDS, NAMES, max_size=3).map(lambda parts: tuple(parts.items()))
KEYS = st.sampled_from(["producer_byte_rate", "request_percentage", "connection_creation_rate", "bogus"])
VALUES = st.sampled_from(
    [None, 1.0, 2.0, 2.5, 1000.0000001, 0.0, -1.0, NAN, math.inf, 2.0**31, 2.0**63, 1e19]
)
ALTERATIONS = st.lists(
    st.builds(
        lambda entity, ops: Alteration(entity=entity, ops=ops),
        ENTITIES,
        st.lists(st.tuples(KEYS, VALUES), max_size=3),
    ),
    max_size=4,
)
FILTERS = st.lists(
    st.one_of(
        st.builds(FilterComponent, KINDS, st.just(MATCH_EXACT), st.sampled_from(["a", "b", "10.0.0.1"])),
        st.builds(FilterComponent, KINDS, st.just(MATCH_DEFAULT)),
        st.builds(FilterComponent, KINDS, st.just(MATCH_SPECIFIED)),
    ),
    max_size=2,
    unique_by=lambda component: component.entity_type,
)

Model = dict[frozenset, dict[str, float]]


def _is_valid(entity: dict, ops: dict) -> bool:
    """Say whether Kafka takes the alteration; slowly and without a text."""
    ip_alone = set(entity) == {"ip"} and entity["ip"] in (None, "10.0.0.1")
    client = bool(entity) and "ip" not in entity
    if not (ip_alone or client) or "" in entity.values():
        return False
    wholes = {"producer_byte_rate": 2**63, "connection_creation_rate": 2**31 - 1}
    allowed = {"connection_creation_rate"} if ip_alone else {"producer_byte_rate", "request_percentage"}
    for key, value in ops.items():
        if value is None:
            continue
        if key not in allowed or value <= 0:
            return False
        if key in wholes and not math.isnan(value) and (value > wholes[key] or value % 1 > 1e-6):
            return False
    return True


def _model_alter(model: Model, alterations: list[Alteration]) -> set[frozenset]:
    """Apply alterations to the model and return the entities that are answered with success."""
    answered: dict[frozenset, bool] = {}
    for alteration in alterations:
        entity, ops = dict(alteration.entity), dict(alteration.ops)
        name = frozenset(entity.items())
        if name in answered or len(ops) < len(alteration.ops):
            answered[name] = False
            continue
        answered[name] = _is_valid(entity, ops)
        if answered[name]:
            merged = model.pop(name, {}) | ops
            kept = {key: value for key, value in merged.items() if value is not None}
            if kept:
                model[name] = kept
    return {name for name, good in answered.items() if good}


class DefinitionsMachine(RuleBasedStateMachine):
    """Definitions beside a dict of dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.definitions = QuotaDefinitions()
        self.model: Model = {}

    @rule(alterations=ALTERATIONS)
    def alter(self, alterations: list[Alteration]) -> None:
        outcome = run_at_once(self.definitions.alter_in_slices(alterations))
        self.definitions.apply(outcome.records)
        good = {frozenset(one.entity) for one in outcome.results if one.error_code == error_codes.NONE}
        assert good == _model_alter(self.model, alterations)
        assert all(
            (one.error_code == error_codes.NONE) is (one.error_message is None) for one in outcome.results
        )
        assert {one.error_code for one in outcome.results} <= {error_codes.NONE, error_codes.INVALID_REQUEST}

    @rule(alterations=ALTERATIONS)
    def alter_in_vain(self, alterations: list[Alteration]) -> None:
        assert run_at_once(self.definitions.alter_in_slices(alterations, validate_only=True)).records == ()

    @rule(components=FILTERS, strict=st.booleans())
    def describe(self, components: list[FilterComponent], strict: bool) -> None:
        description = run_at_once(self.definitions.describe_in_slices(components, strict=strict))
        kinds = {component.entity_type for component in components}
        if "ip" in kinds and len(kinds) > 1:
            assert (description.entries, description.error_code) == (None, error_codes.INVALID_REQUEST)
            return
        assert description.entries is not None
        found = {frozenset(entity) for entity, _ in description.entries}
        assert found == {name for name in self.model if _model_matches(dict(name), components, strict)}

    @invariant()
    def agrees_with_the_model(self) -> None:
        stored = {frozenset(entity): dict(self.definitions.values(entity)) for entity in self.definitions}
        assert repr(sorted(map(repr, _plain(stored)))) == repr(sorted(map(repr, _plain(self.model))))


def _plain(model: Model) -> list[tuple]:
    return [(sorted(name, key=repr), sorted(values.items())) for name, values in model.items()]


def _model_matches(entity: dict, components: list[FilterComponent], strict: bool) -> bool:
    if strict and len(entity) != len(components):
        return False
    for component in components:
        if component.entity_type not in entity:
            return False
        name = entity[component.entity_type]
        if component.match_type != MATCH_SPECIFIED and name != component.match:
            return False
    return True


TestDefinitionsAgainstModel = DefinitionsMachine.TestCase
TestDefinitionsAgainstModel.settings = settings(max_examples=60, stateful_step_count=25)
TestDefinitionsAgainstModel.__doc__ = "Alter and describe do what a dict of dicts with plain checks does."
