"""The compose file of the gateway: its command line, settings and ports fit one another. It is not started here."""

from pathlib import Path

import pytest
import yaml

from tidegate.cli.main import _parser
from tidegate.config.properties import load_properties
from tidegate.gateway.settings import broker_config, listener_addresses
from tidegate.server.settings.config import ServerConfig

CONTAINER = Path(__file__).parents[2] / "container"
COMPOSE = yaml.safe_load((CONTAINER / "compose.gateway.yaml").read_text(encoding="utf-8"))
GATEWAY = COMPOSE["services"]["gateway"]


@pytest.fixture(scope="module")
def config() -> ServerConfig:
    """Return the settings that the compose file mounts."""
    source, target, _ = GATEWAY["volumes"][0].split(":")
    assert target == _arguments().config
    return ServerConfig.load(load_properties(CONTAINER / source))


def _arguments():
    """Return the parsed command line of the container."""
    program, *arguments = [*GATEWAY["entrypoint"], *GATEWAY["command"]]
    assert program == "tidegate"
    return _parser(arguments).parse_args(arguments)


def test_the_published_ports_are_those_of_the_brokers(config: ServerConfig) -> None:
    """Each broker of the example has its port published under the number that clients are told."""
    brokers = range(1, len(_arguments().upstream.split(",")) + 1)
    ports = [broker_config(config, broker).listeners[0].address.port for broker in brokers]
    assert GATEWAY["ports"] == [f"{port}:{port}" for port in ports]
    (told,) = listener_addresses(config).values()
    assert [told[1] + broker for broker in brokers] == ports
    assert GATEWAY["healthcheck"]["test"][-1] == f"127.0.0.1:{ports[0]}"


def test_it_observes_first_and_keeps_its_record(config: ServerConfig) -> None:
    """No client is throttled before the operator says so, and the usage record is on a volume."""
    assert config.given["tidegate.quota.observe"] == "all"
    volume, directory = GATEWAY["volumes"][1].split(":")
    assert directory == str(config.data_dir)
    assert volume in COMPOSE["volumes"]
    assert f"VOLUME {directory}\n" in (CONTAINER.parent / "Dockerfile").read_text(encoding="utf-8")
