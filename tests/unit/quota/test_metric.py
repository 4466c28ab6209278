"""Names of metrics as Kafka's JMX has them."""

import pytest

from tidegate.quota import Metric


def test_tags_are_quoted_in_a_bean_and_empty_ones_left_out() -> None:
    """What a real broker showed for an odd client id."""
    tags = {"user": "ANONYMOUS", "client-id": "a:b c*?"}
    metric = Metric(group="Produce", name="byte-rate", tags=tags, value=1.0)
    assert metric.bean == 'kafka.server:type=Produce,user=ANONYMOUS,client-id="a:b c\\*\\?"'
    assert metric.bean_attribute == "byte-rate"
    bare = Metric(group="Request", name="request-time", tags={"user": "", "client-id": ""}, value=1.0)
    assert bare.bean == "kafka.server:type=Request"


def test_a_bean_of_its_own_has_the_metrics_name() -> None:
    """Meters and histograms have an attribute for each number, gauges one called Value."""
    tags = {"request": "Produce"}
    count = Metric(group="RequestMetrics", name="ThrottleTimeMs", tags=tags, value=1.0, attribute="Count")
    assert count.bean == "kafka.network:type=RequestMetrics,name=ThrottleTimeMs,request=Produce"
    assert count.bean_attribute == "Count"
    gauge = Metric(group="SocketServer", name="MemoryPoolUsed", tags={}, value=1.0)
    assert (gauge.bean, gauge.bean_attribute) == (
        "kafka.network:type=SocketServer,name=MemoryPoolUsed",
        "Value",
    )


def test_a_metric_is_a_value() -> None:
    """It cannot be changed."""
    metric = Metric(group="Fetch", name="queue-size", tags={}, value=0.0)
    with pytest.raises(AttributeError):
        metric.value = 1.0  # type: ignore[misc]
