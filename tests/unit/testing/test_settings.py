"""Settings that the kit gives its broker, and what importing the kit costs."""

import subprocess
import sys

import pytest

from tidegate.config.jaas import parse_jaas
from tidegate.config.properties import parse_properties
from tidegate.errors import ConfigError
from tidegate.testing import broker
from tidegate.testing.process import _escaped
from tidegate.testing.running_broker import _listeners, _settings

ODD = ' lead"ing\\ \t\n\r\fü=:#!\U0001f980 '
HEAVY = ("asyncio", "yaml", "tidegate.quota", "tidegate.wire", "tidegate.usage", "tidegate.config")


def test_any_value_survives_the_settings_file():
    """What Java's properties would change or cut is escaped."""
    for value in (ODD, ODD.strip(), "", "\\", "a\\"):
        assert parse_properties(f"x={_escaped(value)}\n", source="x") == {"x": value}


def test_any_password_survives_the_settings_of_users():
    """Quotes, backslashes and line ends in names and passwords are escaped."""
    text = _listeners({"a b": ODD, 'q"\\': "x"})["listener.name.clients.plain.sasl.jaas.config"]
    assert parse_jaas(text, setting="x").options == {"user_a b": ODD, 'user_q"\\': "x"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [("none", "client-id=tidegate-testing"), ("all", "all"), ("user=a", "user=a;client-id=tidegate-testing")],
)
def test_the_kit_is_exempt_beside_others(given, expected):
    """Requests of the kit count against no quota, whatever clients the test exempts."""
    assert _settings({"tidegate.quota.exempt": given}, None)["tidegate.quota.exempt"] == expected


@pytest.mark.parametrize(
    "options",
    [
        {"settings": {"listeners": "PLAINTEXT://:1"}},
        {"settings": {"tidegate.usage.enable": False}},
        {"sasl": {}},
        {"quotas": "/nowhere/quotas.yaml"},
    ],
)
def test_options_that_cannot_be_used_are_refused(options):
    """No broker is started."""
    with pytest.raises(ConfigError), broker(**options):
        raise AssertionError("a broker was started")


def test_the_plugin_costs_other_test_suites_little():
    """Every run of pytest imports the plugin: it loads neither engine nor codecs; the kit does not load pytest."""
    loaded = "import sys; print(*sys.modules)"
    for module, others in (
        ("tidegate.testing.pytest_plugin", HEAVY),
        ("tidegate.testing", (*HEAVY, "pytest")),
    ):
        command = [sys.executable, "-c", f"import {module}; {loaded}"]
        names = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
        assert module in names
        assert set(names) & set(others) == set()
