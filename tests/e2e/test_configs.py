"""`tidegate configs` against `tidegate serve` and a real Apache Kafka: what Kafka's own tool printed of Kafka."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.broker import Broker
from tests.vectors import cli

from tidegate.cli.main import main as tidegate

ROOT = Path(__file__).parents[2]
RECORDED = [str(ROOT / "tests/vectors/cli" / name) for name in ("quotas.json", "errors.json")]
TIMEOUT_S = 60


@pytest.fixture
def login_broker(tmp_path) -> Iterator[Broker]:
    """Return a broker that only users can use."""
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.clients.plain.sasl.jaas.config": f'{plain} required user_admin="admin-secret";',
    }
    broker = Broker(tmp_path, settings).start()
    yield broker
    broker.close()


def configs(*arguments: str) -> subprocess.CompletedProcess:
    """Run `tidegate configs` in a process of its own."""
    command = [sys.executable, "-m", "tidegate", "configs", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_recorded_commands_print_what_they_printed_of_kafka(new_broker, capsys):
    """All 111: exit code, lines of stdout, first line of stderr. What they leave is removed, so that it works again."""
    address = new_broker().address
    for _ in range(2):
        code = cli.main(["--in-process", "--bootstrap", address, *RECORDED])
        assert (code, capsys.readouterr().out) == (0, "111 passed, 0 failed\n")


@pytest.mark.java
def test_recorded_commands_of_a_real_kafka(beside_kafka, capsys):
    """The same commands, of the broker that they were recorded of."""
    code = cli.main(["--in-process", "--bootstrap", beside_kafka["kafka"].address, *RECORDED])
    assert (code, capsys.readouterr().out) == (0, "111 passed, 0 failed\n")


def test_the_player_finds_what_differs(new_broker, tmp_path):
    """As a program: a wrong recording fails, other tools are counted apart, and a used cluster is refused."""
    address = new_broker().address
    describe = {
        "tool": "kafka-configs",
        "argv": ["--bootstrap-server", "{bootstrap}", "--describe", "--client", "c"],
    }
    alter = [*describe["argv"][:2], "--alter", "--client", "c", "--add-config", "producer_byte_rate=5"]
    done = "Completed updating config for client c.\n"
    commands = [
        {"tool": "kafka-topics", "argv": ["--list"], "exit_code": 0, "stdout": "", "stderr": ""},
        {**describe, "exit_code": 0, "stdout": "", "stderr": ""},
        {"tool": "kafka-configs", "argv": alter, "exit_code": 1, "stdout": done, "stderr": ""},
    ]
    (tmp_path / "f.json").write_text(json.dumps({"commands": commands}))

    def play() -> subprocess.CompletedProcess:
        command = [
            sys.executable,
            str(ROOT / "tests/vectors/cli.py"),
            "--bootstrap",
            address,
            str(tmp_path / "f.json"),
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    played = play()
    assert played.returncode == 1, played
    assert "f.json: --bootstrap-server {bootstrap} --alter --client c" in played.stdout
    assert played.stdout.endswith("not covered: 1 commands of kafka-topics\n1 passed, 1 failed\n")
    assert configs("--bootstrap-server", address, *alter[2:]).stdout == done
    refused = play()
    assert (refused.returncode, "the cluster has client quotas, expected none" in refused.stderr) == (2, True)


def test_a_stack_trace_becomes_a_reason_and_a_hint(new_broker):
    """Of a refusal by the broker, and of a cluster that is not there; the first line is that of Kafka's tool."""
    broker = new_broker()
    arguments = [
        "--bootstrap-server",
        broker.address,
        "--alter",
        "--client",
        "a",
        "--add-config",
        "producer_byte_rate=0",
    ]
    refused = configs(*arguments)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines() == [
        f"Error while executing config command with args '{' '.join(arguments)}'",
        "error: Quota producer_byte_rate must be greater than 0 (INVALID_REQUEST)",
        "hint: nothing was changed; correct the argument, then run the command again",
    ]
    broker.stop()
    gone = configs("--bootstrap-server", broker.address, "--describe", "--entity-type", "users")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr.splitlines()[1:] == [
        f"error: cannot connect to {broker.address}: Connection refused",
        "hint: check that a broker listens there",
    ]


def test_a_login_from_a_command_config(login_broker, tmp_path):
    """A user whose credential the command has set, its password in a file, logs in with it."""
    properties = tmp_path / "client.properties"
    module = "org.apache.kafka.common.security"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        f'{module}.plain.PlainLoginModule required username="admin" password="admin-secret";\n'
    )
    (tmp_path / "sam.properties").write_text("SCRAM-SHA-256=iterations=8192,password=s[1],\\=\n")
    to = ("--bootstrap-server", login_broker.address, "--command-config", str(properties))
    made = configs(*to, "--alter", "--user", "sam", "--add-config-file", str(tmp_path / "sam.properties"))
    assert (made.returncode, made.stdout) == (0, "Completed updating config for user sam.\n"), made
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config="
        f'{module}.scram.ScramLoginModule required username="sam" password="s[1],=";\n'
    )
    shown = configs(*to, "--describe", "--user", "sam")
    assert (
        shown.stdout
        == "SCRAM credential configs for user-principal 'sam' are SCRAM-SHA-256=iterations=8192\n"
    ), shown


def test_settings_of_topics_and_brokers(new_broker, create_topic, capsys):
    """Changed settings are listed for all topics and brokers, and with --all the others too."""
    broker = new_broker()
    for name in ("orders", "bills"):
        create_topic(broker, name)

    def run(*arguments: str, code: int = 0) -> list[str]:
        assert tidegate(["configs", "--bootstrap-server", broker.address, *arguments]) == code
        printed = capsys.readouterr()
        return printed.out.splitlines() + printed.err.splitlines()

    assert run(
        "--alter", "--topic", "bills", "--add-config", "retention.ms=1000,cleanup.policy=[compact,delete]"
    ) == ["Completed updating config for topic bills."]
    changed = sorted(run("--describe", "--entity-type", "topics"))
    assert [line.partition(" sensitive")[0] for line in changed] == [
        "  cleanup.policy=compact,delete",
        "  retention.ms=1000",
        "Dynamic configs for topic bills are:",
        "Dynamic configs for topic orders are:",
    ]
    first, *settings = run("--describe", "--topic", "orders", "--all")
    assert (first, len(settings) > 20) == ("All configs for topic orders are:", True)
    assert run("--describe", "--topic", "a b", code=1)[0].startswith("Topic name is invalid: 'a b' contains")
    assert run("--describe", "--broker", "9") == [
        "The broker '9' doesn't exist and doesn't have dynamic config."
    ]
    assert run("--alter", "--broker", "9", "--add-config", "max.connections=5", code=1)[1:] == [
        "error: the cluster has no broker 9, it has [1]",
        "hint: run --describe to see what is in force, then run the command again",
    ]


def test_names_cannot_write_to_the_terminal(new_broker, capsys):
    """Control characters in names are escaped."""
    to = ["--bootstrap-server", new_broker().address]
    assert (
        tidegate(["configs", *to, "--alter", "--client", "a\x1b[2J", "--add-config", "producer_byte_rate=1"])
        == 0
    )
    assert tidegate(["configs", *to, "--describe", "--entity-type", "clients"]) == 0
    assert capsys.readouterr().out == (
        "Completed updating config for client a\\x1b[2J.\n"
        "Quota configs for client-id 'a\\x1b[2J' are producer_byte_rate=1.0\n"
    )


def test_a_call_imports_little(new_broker):
    """A call is short (decision 0121), so it loads neither YAML nor what TLS or the pipeline takes."""
    arguments = [
        "configs",
        "--bootstrap-server",
        new_broker().address,
        "--describe",
        "--entity-type",
        "users",
    ]
    code = (
        "import sys; from tidegate.cli.main import main\n"
        f"assert main({arguments!r}) == 0\n"
        "heavy = {'cryptography', 'yaml', 'rich', 'numpy', 'pyarrow', 'cramjam', 'tidegate.storage'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_S, env=dict(os.environ))
