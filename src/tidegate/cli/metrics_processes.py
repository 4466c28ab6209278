"""The documents of a metrics listener for all processes of a gateway that serve the same broker, as one document.

Each process knows only its own clients: their usage of a shared quota, and their throttled connections. A document
contains the ports of all processes (`process_ports`), so that a command can ask each of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from tidegate.cli.metrics_client import MetricsClient, MetricsError
from tidegate.server.monitoring.entity_order import CLUSTER, entity_order

__all__ = ["merged_document", "processes_text", "whole_document"]

UNANSWERED = "unanswered_ports"
"""Key of the ports of the processes that did not answer."""


def whole_document(client: MetricsClient, path: str, **query: str) -> dict[str, Any]:
    """Return the combined document of all processes that serve the broker of a listener. Raises `MetricsError`.

    The listener itself must answer. Another process need not: it may be restarting, or its port may not be reachable.
    All processes are asked at the same time, so that several ports without an answer take no longer than one.
    """
    first = client.get(path, **query)
    ports = [
        port for number, port in enumerate(first.get("process_ports", ()), 1) if number != first["process"]
    ]
    if not ports:
        return first

    def ask(port: int) -> dict[str, Any] | None:
        try:
            return replace(client, url=_with_port(client.url, port)).get(path, **query)
        except MetricsError:
            return None

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(ports)) as pool:
        answers = list(pool.map(ask, ports))
    documents = [first, *(answer for answer in answers if answer is not None)]
    return merged_document(
        documents, [port for port, answer in zip(ports, answers, strict=True) if answer is None]
    )


def merged_document(documents: Sequence[Mapping[str, Any]], unanswered: Sequence[int]) -> dict[str, Any]:
    """Return the documents of several processes as one. Its `process` is None."""
    found = {**documents[0], "process": None, UNANSWERED: list(unanswered)}
    if "entities" in found:
        of_key: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for entity in (entity for document in documents for entity in document["entities"]):
            key = tuple(entity[name] for name in ("quota_type", "user", "client_id"))
            of_key.setdefault(key, []).append(entity)
        found["entities"] = sorted(map(_together, of_key.values()), key=entity_order)
        found["quota_types"] = {
            kind: _counts(kind, documents, of_key) for kind in documents[0]["quota_types"]
        }
    else:
        by_type = zip(*(document["quotas"] for document in documents), strict=True)
        found["quotas"] = [_together(quotas) for quotas in by_type]
    return found


def processes_text(document: Mapping[str, Any]) -> str:
    """Return the part of a table's first line about the processes; nothing if there is only one.

    >>> processes_text({"process_ports": [1, 2, 3], "unanswered_ports": [2]})
    ', 2 of 3 processes'
    """
    ports, unanswered = document.get("process_ports", ()), document.get(UNANSWERED, ())
    if len(ports) < 2:
        return ""
    answered = len(ports) - len(unanswered)
    return f", {answered} of {len(ports)} processes" if unanswered else f", {len(ports)} processes"


def _together(uses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the usage of one quota in all processes.

    If the processes share a limit by demand, each knows the total rate. Otherwise, also for mutations, each process has
    its own rate, and the rates are added up.
    """
    from tidegate.quota import QuotaType  # imported here because `tidegate --help` loads this module

    first = uses[0]
    is_mutation = first["quota_type"] == QuotaType.CONTROLLER_MUTATION.value
    # A process whose clients did not use the quota does not know that it is cluster-wide.
    scope = CLUSTER if any(use["scope"] == CLUSTER for use in uses) else first["scope"]
    is_shared = not is_mutation and (scope == CLUSTER or first["limit"] is not None)
    rates = _numbers(uses, "rate")
    return {
        **first,
        "observed": any(use.get("observed") for use in uses),
        "scope": scope,
        "rate": (max if is_shared else sum)(rates) if rates else None,
        "utilization": max(_numbers(uses, "utilization"), default=None),
        "throttle_time_ms": max(use["throttle_time_ms"] for use in uses),
        "throttled_connections": sum(use["throttled_connections"] for use in uses),
        "throttled_until_ms": max(_numbers(uses, "throttled_until_ms"), default=None),
        "reason": next((use["reason"] for use in uses if use["reason"] is not None), None),
    }


def _numbers(uses: Iterable[Mapping[str, Any]], name: str) -> list[Any]:
    return [use[name] for use in uses if use[name] is not None]


def _counts(
    kind: str, documents: Iterable[Mapping[str, Any]], listed: Iterable[tuple[str, ...]]
) -> dict[str, int]:
    """Return the number of entities of a type.

    Processes may leave out the same entities, so the largest number of omitted ones counts.
    """
    omitted = max(document["quota_types"][kind]["omitted"] for document in documents)
    return {"entities": omitted + sum(1 for key in listed if key[0] == kind), "omitted": omitted}


def _with_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{port}"
