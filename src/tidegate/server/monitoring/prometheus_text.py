r"""Metrics in the text format of Prometheus, under the names that Kafka's metrics have there.

>>> metric = Metric(group="Produce", name="byte-rate", tags={"user": "alice", "client-id": "c\n1"}, value=512.0)
>>> families = Families()
>>> families.add_metric(metric)
>>> for line in families.lines():
...     print(line, end="")
# HELP kafka_server_produce_byte_rate Kafka: kafka.server, type=Produce, byte-rate
# TYPE kafka_server_produce_byte_rate gauge
kafka_server_produce_byte_rate{user="alice",client_id="c\n1"} 512.0

Metrics of Kafka's own registry have the names of the JMX exporter's default format in lower case, which are those of
Strimzi's Metrics Reporter, too. Meters and histograms (Yammer) have the names of the JMX exporter's example for Kafka,
and of Strimzi's, and only the numbers that those export (decision 0117).
"""

import math
import re
from collections.abc import Iterator, Mapping

from tidegate.quota import Metric
from tidegate.server.monitoring.entities import shown_name

__all__ = ["CONTENT_TYPE", "Families"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_GAUGE, _COUNTER = "gauge", "counter"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_PERCENTILE = re.compile(r"([0-9]+)thPercentile")
_ESCAPES = {"\\": r"\\", "\n": r"\n", '"': r"\""}
_ESCAPED = re.compile(r'[\\\n"]')


class Families:
    """Lines by name: the format wants all lines of a name together."""

    def __init__(self) -> None:
        self._heads: dict[str, str] = {}
        self._lines: dict[str, list[str]] = {}

    def add_metric(self, metric: Metric) -> None:
        """Add a metric, unless it is a number that the JMX exporter's rules leave out."""
        found = _family(metric)
        if found is not None:
            name, kind, labels = found
            domain, _, _ = metric.bean.partition(":")
            help_text = f"Kafka: {domain}, type={metric.group}, {metric.name}"
            self.add(name, metric.value, {**metric.tags, **labels}, kind=kind, help_text=help_text)

    def add(
        self, name: str, value: float, labels: Mapping[str, str], *, help_text: str, kind: str = _GAUGE
    ) -> None:
        """Add one number. An empty label is left out, which means the same."""
        lines = self._lines.get(name)
        if lines is None:
            self._heads[name] = f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"
            lines = self._lines[name] = []
        pairs = ",".join(
            f'{_NOT_IN_NAMES.sub("_", key)}="{_escaped(shown_name(text))}"'
            for key, text in labels.items()
            if text
        )
        lines.append(f"{name}{{{pairs}}} {_number(value)}\n" if pairs else f"{name} {_number(value)}\n")

    def lines(self) -> Iterator[str]:
        """Yield the text a line or two at a time."""
        for name, lines in self._lines.items():
            yield self._heads[name]
            yield from lines


def _family(metric: Metric) -> tuple[str, str, dict[str, str]] | None:
    """Return name, type and further labels, None for a number that is left out."""
    domain = metric.bean.partition(":")[0]
    prefix = f"{domain}.{metric.group}"
    if not metric.is_yammer:
        kind = _COUNTER if metric.name.endswith("-total") else _GAUGE
        return _name(f"{prefix}.{metric.name}"), kind, {}
    if metric.name.endswith("Percent"):
        is_wanted = metric.attribute in (None, "MeanRate")
        return (_name(f"{prefix}.{metric.name[:-7]}.percent"), _GAUGE, {}) if is_wanted else None
    if metric.attribute is None:
        return _name(f"{prefix}.{metric.name}"), _GAUGE, {}
    if metric.attribute == "Count":
        per_s = metric.name.removesuffix("PerSec")
        ending = "total" if per_s != metric.name else "count"
        return _name(f"{prefix}.{per_s}.{ending}"), _COUNTER, {}
    percentile = _PERCENTILE.fullmatch(metric.attribute)
    if percentile is not None:
        return _name(f"{prefix}.{metric.name}"), _GAUGE, {"quantile": f"0.{percentile[1]}"}
    return None


def _name(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text).lower()


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], text)


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
