"""Names and labels of Kafka's metrics in Prometheus, as exporters write them."""

from pathlib import Path

import pytest

from tidegate.config.plain_yaml import ConfigFileError
from tidegate.pipeline.prometheus.spellings import KNOWN, Spellings, is_mangled, load_spellings
from tidegate.quota.managers.quota_type import QuotaType


@pytest.mark.parametrize(
    ("name", "labels", "client"),
    [
        # The JMX exporter's rules for Kafka: each quota rule alone, and the order in which the first swallows users.
        (
            "kafka_server_quota_byte_rate",
            {"resource": "Fetch", "user": "alice", "clientId": "app"},
            (QuotaType.FETCH, "alice", "app"),
        ),
        (
            "kafka_server_quota_byte_rate",
            {"resource": "Produce, user=a%2Fb", "clientId": "app"},
            (QuotaType.PRODUCE, "a/b", "app"),
        ),
        (
            "kafka_server_quota_byte_rate",
            {"resource": "Produce", "user": "alice, client-id=app"},
            (QuotaType.PRODUCE, "alice", "app"),
        ),
        (
            "kafka_server_quota_byte_rate",
            {"resource": "Produce", "clientId": '"team:a \\"x\\", y=1\\*"'},
            (QuotaType.PRODUCE, None, 'team:a "x", y=1*'),
        ),
        (
            "kafka_server_quota_mutation_rate",
            {"resource": "ControllerMutation", "user": "alice"},
            (QuotaType.CONTROLLER_MUTATION, "alice", None),
        ),
        # The exporter without rules, and Strimzi's metrics reporter.
        (
            "kafka_server_Produce_byte_rate",
            {"client_id": "app", "user": "a%25b"},
            (QuotaType.PRODUCE, "a%b", "app"),
        ),
        ("kafka_server_request_request_time", {"user": "alice"}, (QuotaType.REQUEST, "alice", None)),
        (
            "kafka_server_controllermutation_mutation_rate",
            {"client_id": "app"},
            (QuotaType.CONTROLLER_MUTATION, None, "app"),
        ),
    ],
)
def test_known_names_and_labels_name_a_client(name, labels, client):
    """Quotes of JMX and escapes of Kafka are taken off; a label that contains others is divided."""
    spelling = KNOWN.spelling(name)
    assert spelling is not None
    assert KNOWN.client(spelling, {"instance": "kafka:7071", **labels}) == client


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("kafka_server_quota_byte_rate", {"resource": "LeaderReplication", "clientId": "app"}),
        ("kafka_server_quota_byte_rate", {"clientId": "app"}),
        ("kafka_server_produce_byte_rate", {}),
        ("kafka_server_produce_byte_rate", {"user": "%zz"}),
    ],
)
def test_series_of_no_client_are_left_out(name, labels):
    """Without a client, of another quota, or with a name that Kafka would not write."""
    spelling = KNOWN.spelling(name)
    assert spelling is not None
    assert KNOWN.client(spelling, labels) is None


@pytest.mark.parametrize(
    "name", ["kafka_server_request_exempt_request_time", "kafka_server_produce_queue_size", "up", ""]
)
def test_other_names_mean_nothing(name):
    """Metrics that are of no client."""
    assert KNOWN.spelling(name) is None


def test_names_that_contain_clients_are_recognized():
    """The JMX exporter's example for KRaft has a rule that makes such names."""
    assert is_mangled("kafka_server_produce_user_anonymous_client_id_app_byte_rate")
    assert not is_mangled("kafka_server_produce_byte_rate")


def _written(directory: Path, text: str) -> Path:
    path = directory / "names.yaml"
    path.write_text(text)
    return path


def test_a_file_gives_other_names(tmp_path):
    """Names, types and labels as the file says, and no others."""
    path = _written(
        tmp_path,
        "metrics:\n"
        "  - {name: company_rate, measures: byte-rate}\n"
        "  - {name: company_out, measures: byte-rate, quota: Fetch}\n"
        "  - {name: company_time, measures: request-time}\n"
        "labels: {quota: kind, user: principal, client-id: app, node: broker}\n",
    )
    spellings = load_spellings(path)
    rate = spellings.spelling("company_rate")
    out = spellings.spelling("company_out")
    assert rate is not None
    assert out is not None
    labels = {"kind": "produce", "principal": "alice", "user": "other", "broker": "1"}
    assert spellings.client(rate, labels) == (QuotaType.PRODUCE, "alice", None)
    assert spellings.client(out, labels) == (QuotaType.FETCH, "alice", None)
    assert spellings.label("node", labels) == "broker"
    assert spellings.spelling("kafka_server_quota_byte_rate") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("labels: {}\n", "names.yaml:1: metrics is missing"),
        ("metrics: []\n", "names.yaml:1: metrics must have 1 to 100 names"),
        ("metrics:\n - {measures: byte-rate}\n", "names.yaml:2: name is missing"),
        ("metrics:\n - {name: 'a{}', measures: byte-rate}\n", "name must be a name that Prometheus accepts"),
        ("metrics:\n - {name: a, measures: bytes}\n", "measures must be one of byte-rate, request-time"),
        ("metrics:\n - {name: a, measures: byte-rate, quota: Sent}\n", "quota must be one of Produce, Fetch"),
        ("metrics:\n - {name: a, measures: byte-rate}\nlabels: {host: x}\n", "unknown key 'host' in labels"),
    ],
)
def test_mistakes_in_a_file_name_the_line(tmp_path, text, problem):
    """File, line, and what was expected."""
    with pytest.raises(ConfigFileError) as caught:
        load_spellings(_written(tmp_path, text))
    assert problem in str(caught.value)


def test_without_a_file_the_known_names_are_in_use():
    """The default has no names of its own."""
    assert Spellings() == KNOWN
