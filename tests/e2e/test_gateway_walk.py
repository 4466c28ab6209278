"""The walk of docs/gateway.md runs as it stands, before a real Apache Kafka: from observing to enforcing, and back."""

import re
from pathlib import Path

import pytest
from bench.ladder.brokers import SHORT_LIVED, KafkaBench
from tests.e2e.typed_blocks import Page, free_ports, type_blocks

PAGE = Page.read("gateway.md")
KAFKA_PORT, PORT, TIMEOUT_S = 9092, 19300, 240.0


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory, kcat: str) -> list[str]:
    """Return what each block printed, beside a Kafka."""
    assert Path(kcat).name == "kcat"
    kafka = KafkaBench("kafka", tmp_path_factory.mktemp("kafka"), java_options=SHORT_LIVED)
    kafka.start()
    try:
        ports = {KAFKA_PORT: kafka.port, **free_ports(PORT, 1)}
        return type_blocks(PAGE.run, tmp_path_factory.mktemp("walk"), ports=ports, timeout_s=TIMEOUT_S)
    finally:
        kafka.stop()


def test_the_walk_runs_as_it_stands(printed: list[str]) -> None:
    """Every block ends well, and prints what is shown behind it."""
    PAGE.check(printed)
    assert len(PAGE.shown) == 5


def test_a_plan_is_made_and_taken_back(printed: list[str]) -> None:
    """The record has both clients, the plan's changes are applied, and undone."""
    used, planned, undone = printed[2], printed[3], printed[-1]
    assert {"loader", "reader"} <= set(used.split())
    assert re.search(r"^\+ client-id=.* producer_byte_rate ", planned, re.MULTILINE)
    changed = re.compile(r"changed: (\d+ values? of \d+ entit(?:y|ies))")
    assert changed.findall(planned) == changed.findall(undone) != []
