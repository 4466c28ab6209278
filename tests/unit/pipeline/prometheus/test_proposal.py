"""Quotas out of metrics: levels, evidence, and what the notes say."""

import pytest

from tidegate.pipeline.prometheus.measured import Measured
from tidegate.pipeline.prometheus.proposal import metrics_notes, recommend_from_metrics
from tidegate.pipeline.proposals.evidence import TooLittleDataError
from tidegate.pipeline.proposals.propose import NothingToRecommendError
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.quota.managers.quota_type import QuotaType

_MANY = set(range(30))


def _measured(**changed):
    measured = Measured(from_s=1_700_000_000, to_s=1_700_086_400, interval_s=15.0, is_raw=True)
    measured.windows = {QuotaType.PRODUCE: set(_MANY), QuotaType.FETCH: {1, 2}}
    for number in range(5):
        measured.peaks[(QuotaType.PRODUCE, f"u{number}", None), "kafka-1:7071"] = 100_000.0 + number
        measured.peaks[(QuotaType.PRODUCE, f"u{number}", None), "kafka-2:7071"] = 50_000.0
    measured.peaks[(QuotaType.PRODUCE, "loader", None), "kafka-2:7071"] = 9_000_000.0
    measured.peaks[(QuotaType.FETCH, "u1", None), "kafka-1:7071"] = 70_000.0
    for name, value in changed.items():
        setattr(measured, name, value)
    return measured


def _values(found):
    return {
        dict(entry.entity).get("user") or "<default>": dict(entry.values) for entry in found.quotas.entries
    }


def test_the_largest_value_of_a_broker_times_the_headroom_is_proposed():
    """A default for the many, an override for the one that needs more; fetch has too little use."""
    wanted = Wanted()
    found = recommend_from_metrics(_measured(), None, wanted)
    values = _values(found)
    assert set(values) == {"<default>", "loader"}
    assert values["<default>"].keys() == values["loader"].keys() == {"producer_byte_rate"}
    assert 150_006 <= values["<default>"]["producer_byte_rate"] <= 1.14 * 150_006
    assert 13_500_000 <= values["loader"]["producer_byte_rate"] <= 1.14 * 13_500_000
    assert "(node kafka-2:7071)" in (found.quotas.entries[1].reason or "")
    notes = "\n".join(metrics_notes(found, wanted))
    assert "2023-11-14 22:13:20 to 2023-11-15 22:13:20 UTC" in notes
    assert "Scrapes are 15 s apart." in notes
    assert "No fetch quota is proposed: usage in 2 windows of 10 seconds; 30 are enough." in notes
    assert "do not contain these quota types, so none is proposed: request, mutation." in notes
    assert "There is no forecast" in notes


def test_a_mutation_quota_admits_the_busiest_minute_at_once():
    """A mean of 2 mutations a second over up to a minute is up to 120 of them, the bucket of 120 / 11 a second."""
    measured = _measured(windows={QuotaType.CONTROLLER_MUTATION: set(_MANY)})
    measured.peaks = {((QuotaType.CONTROLLER_MUTATION, "deployer", None), "c"): 2.0}
    found = recommend_from_metrics(measured, None, Wanted(headroom=1.0))
    assert 120 / 11 <= _values(found)["<default>"]["controller_mutation_rate"] <= 1.14 * 120 / 11
    assert "admits all mutations of the busiest minute" in "\n".join(metrics_notes(found, Wanted()))


def test_too_few_windows_are_refused_without_force():
    """As with a usage record."""
    measured = _measured(windows={QuotaType.PRODUCE: set(range(29))})
    with pytest.raises(TooLittleDataError, match="usage in 29 windows of 10 seconds"):
        recommend_from_metrics(measured, None, Wanted())
    found = recommend_from_metrics(measured, None, Wanted(force=True))
    assert "Too little data (--force was given): usage in 29 windows" in "\n".join(
        metrics_notes(found, Wanted())
    )


def test_throttled_clients_have_an_unknown_demand():
    """The note names them, and so does the reason next to the value."""
    measured = _measured(throttled={(QuotaType.PRODUCE, "loader", None): 350.0})
    found = recommend_from_metrics(measured, None, Wanted())
    notes = "\n".join(metrics_notes(found, Wanted()))
    assert (
        "Throttled in this time, so that their demand is unknown:\n  produce user=loader: 350 ms on average"
        in notes
    )
    assert "was throttled when recorded and may need more" in (found.quotas.entries[1].reason or "")


def test_other_levels_brokers_and_clusters_are_named():
    """What the proposal does not contain is said, not dropped."""
    measured = _measured(clusters=["job='a'", "job='b'"])
    measured.peaks[(QuotaType.PRODUCE, "u1", "app"), "kafka-1:7071"] = 1.0
    measured.peaks[(QuotaType.PRODUCE, "u1", "broker-1-fetcher-0"), "kafka-1:7071"] = 1.0
    found = recommend_from_metrics(measured, None, Wanted())
    notes = "\n".join(metrics_notes(found, Wanted()))
    assert "at another level: 1 entity by user and client id." in notes
    assert "Ignored: clients of the brokers themselves (user=u1 client-id=broker-1-fetcher-0)." in notes
    assert "several clusters: job='a', job='b'." in notes


def test_a_level_without_metrics_is_refused_and_says_which_there_are():
    """Kafka measures clients at one level: nothing is added up."""
    with pytest.raises(NothingToRecommendError, match="no entity by client id; they have user"):
        recommend_from_metrics(_measured(), "client-id", Wanted())
