"""What the options of `tidegate serve` make of the settings."""

import logging

import pytest

from tidegate.cli.main import main
from tidegate.cli.process import listen_on
from tidegate.errors import ConfigError

OF_KAFKAS_FILE = {
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://localhost:9092, CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
}


def test_a_port_is_that_of_the_listener_that_is_no_controllers() -> None:
    """The file that comes with Kafka has one of each; clients are told the new port where they were told the old."""
    texts = dict(OF_KAFKAS_FILE)
    listen_on(texts, 19092)
    assert texts["listeners"] == "PLAINTEXT://:19092"
    assert texts["advertised.listeners"] == "PLAINTEXT://localhost:19092, CONTROLLER://localhost:9093"


def test_another_port_that_clients_are_told_stays() -> None:
    """Behind a proxy or a container it is not the port of this machine; nor is the same one of another listener."""
    texts = {"listeners": "in://127.0.0.1:9092", "advertised.listeners": "IN://kafka:19092,OUT://kafka:9092"}
    listen_on(texts, 0)
    assert texts["listeners"] == "in://127.0.0.1:0"
    assert texts["advertised.listeners"] == "IN://kafka:19092,OUT://kafka:9092"


def test_a_port_alone_is_that_of_the_default_listener() -> None:
    """Nothing is said of what clients are told."""
    texts: dict[str, str] = {}
    listen_on(texts, 7)
    assert texts == {"listeners": "PLAINTEXT://127.0.0.1:7"}


@pytest.mark.parametrize(
    ("listeners", "port", "told"),
    [("A://:1,B://:2", 3, "with several listeners: A://:1,B://:2"), ("A://:1", 65_536, "0 to 65535")],
)
def test_a_port_that_cannot_be_is_refused(listeners: str, port: int, told: str) -> None:
    """Two listeners cannot have one port, and none has that."""
    with pytest.raises(ConfigError, match=told):
        listen_on({"listeners": listeners}, port)


def test_a_process_that_ends_writes_no_log_any_more(capsys: pytest.CaptureFixture[str]) -> None:
    """Its handler is removed: one that stayed would count and change the lines of the next."""
    handlers = list(logging.getLogger().handlers)
    assert main(["serve", "--config", "none.properties"]) == 2
    assert logging.getLogger().handlers == handlers
    assert "none.properties" in capsys.readouterr().err
