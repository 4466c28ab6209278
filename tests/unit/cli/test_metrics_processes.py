"""Documents of several processes become one: shared rates stay, others are added up, throttled connections too."""

from tests.unit.cli.test_top import document, entity

from tidegate.cli.metrics_processes import merged_document
from tidegate.cli.top import table_lines

PORTS = [9301, 10301, 11301]


def of_process(number, *entities, omitted=0):
    """Return the document of a process."""
    counts = {"Produce": {"entities": len(entities) + omitted, "omitted": omitted}}
    found = document(*(entity(scope="broker", **values) for values in entities))
    return {**found, "process": number, "process_ports": PORTS, "quota_types": counts}


def test_a_shared_rate_is_that_of_all_processes():
    """Each process has the rate of all: the newest reports make them differ a little."""
    merged = merged_document(
        [
            of_process(1, {"rate": 900.0, "utilization": 0.9}),
            of_process(2, {"rate": 950.0, "utilization": 0.95}),
        ],
        [],
    )
    (only,) = merged["entities"]
    assert (only["rate"], only["utilization"]) == (950.0, 0.95)
    assert merged["quota_types"] == {"Produce": {"entities": 1, "omitted": 0}}
    assert merged["process"] is None


def test_what_each_process_counts_for_itself_is_added_up():
    """Rates without a limit, rates of mutations, and throttled connections."""
    unlimited = {"limit": None, "utilization": None}
    mutations = {"quota_type": "ControllerMutation", "utilization": 1.5}
    throttled = {
        "user": "alice", "throttled_connections": 2, "throttled_until_ms": 1_700_000_009_000, "reason": "over",
    }  # fmt: skip
    merged = merged_document(
        [
            of_process(1, {**unlimited, "rate": 10.0}, {**mutations, "rate": 1.0}, throttled),
            of_process(2, {**unlimited, "rate": 5.0}, {**mutations, "rate": 2.0}, {"user": "alice"}),
        ],
        [],
    )
    by_key = {(each["quota_type"], each["user"]): each for each in merged["entities"]}
    assert by_key["Produce", ""]["rate"] == 15.0
    assert by_key["ControllerMutation", ""]["rate"] == 3.0
    assert by_key["ControllerMutation", ""]["utilization"] == 1.5
    alice = merged["entities"][0]
    assert (alice["user"], alice["throttled_connections"], alice["reason"]) == ("alice", 2, "over")


def test_mutations_of_a_shared_quota_are_added_up():
    """Each process has the rate of its own clients, and the use of all gateways."""
    uses = [
        {"quota_type": "ControllerMutation", "rate": 1.0, "utilization": 0.5},
        {"quota_type": "ControllerMutation", "rate": 2.0, "utilization": 0.4},
    ]
    documents = [of_process(number, use) for number, use in enumerate(uses, 1)]
    for each in documents:
        each["entities"][0]["scope"] = "cluster"
    (only,) = merged_document(documents, [])["entities"]
    assert (only["rate"], only["utilization"], only["scope"]) == (3.0, 0.5, "cluster")


def test_a_client_is_observed_if_a_process_observes_it():
    """A process that has not read a changed file yet does not hide it."""
    merged = merged_document([of_process(1, {"observed": False}), of_process(2, {"observed": True})], [])
    assert merged["entities"][0]["observed"] is True


def test_entities_of_one_process_are_listed_too():
    """Also those that use a cluster-wide quota, which the other process does not know as such."""
    other = of_process(2, {"client_id": "elsewhere"})
    other["entities"][0]["scope"] = "cluster"
    merged = merged_document([of_process(1, {"client_id": "here"}, omitted=4), other], [])
    assert {each["client_id"]: each["scope"] for each in merged["entities"]} == {
        "here": "broker",
        "elsewhere": "cluster",
    }
    assert merged["quota_types"]["Produce"] == {"entities": 6, "omitted": 4}


def test_the_first_line_counts_the_processes_that_answered():
    """A process that did not answer is not hidden."""
    merged = merged_document([of_process(1, {}), of_process(3, {})], [PORTS[1]])
    assert " · node 1, 2 of 3 processes · 1 entity" in table_lines(merged, 20)[0]
    assert " · node 1, 3 processes · 1 entity" in table_lines({**merged, "unanswered_ports": []}, 20)[0]
