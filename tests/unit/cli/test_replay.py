"""`tidegate replay`: what it checks of the quotas in force, and in which loop it replays plans."""

import json
import math

import pytest
from tests.replaying.files import write_events
from tests.replaying.node import RecordingNode

from tidegate.cli.main import main
from tidegate.quota.admin.definitions import QuotaRecord

_T0 = 1_700_000_000_000


@pytest.mark.parametrize(
    ("left_out", "exit_code", "said"),
    [
        (slice(0, 0), 0, "in force: 8 of 8 decisions as recorded"),
        (slice(6, 7), 0, "in force: 2 of 2 decisions as recorded"),
        (slice(0, 5), 3, "in force: no decision can be compared with the record"),
    ],
)
def test_what_could_not_be_compared_is_no_success(tmp_path, capsys, left_out, exit_code, said):
    """All rows; a file is missing; an hour alone, in whose rows no quota in force is stated."""
    node = RecordingNode()
    node.start(_T0)
    for second in range(4):
        node.produce("alice", "c1", 10, _T0 + second)
    del node.events[left_out]
    write_events(tmp_path, node.events)
    assert main(["replay", str(tmp_path), "--in-force"]) == exit_code
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("bounds", "limit"),
    [((7.0, 7.0), (7.0, "client-id", False)), ((7.0, 8.0), (None, None, True)), ((7.0, None), (None, None, True)),
     ((math.nan, math.nan), ("NaN", "client-id", False))],
)  # fmt: skip
def test_a_limit_of_several_nodes_is_theirs_or_has_changed(tmp_path, capsys, bounds, limit):
    """Never the largest of them; NaN, which Kafka takes, is one limit."""
    for node_id, bound in enumerate(bounds):
        node = RecordingNode(node_id)
        quota = QuotaRecord(entity=(("client-id", "c1"),), key="producer_byte_rate", value=bound)
        node.start(_T0, records=() if bound is None else (quota,))
        node.produce("alice", "c1", 10, _T0)
        write_events(tmp_path, node.events)
    assert main(["replay", str(tmp_path), "--in-force", "--json"]) == 0
    entities = json.loads(capsys.readouterr().out)["entities"]
    ((plan,),) = [entity["plans"] for entity in entities if entity["quota_type"] == "Produce"]
    assert (plan["limit_bytes_per_second"], plan["limit_of"], plan["limit_changed"]) == limit


def test_limits_stand_beside_a_plan(tmp_path, capsys):
    """Those that `tidegate limits` finds for its entities; none for who has none in it."""
    node = RecordingNode()
    node.start(_T0)
    for second in range(30):
        node.produce("alice", "c1", 10_000, _T0 + 1000 * second)
        node.produce("bob", "c2", 10, _T0 + 1000 * second)
    write_events(tmp_path / "usage", node.events)
    plan = tmp_path / "tight.yaml"
    plan.write_text("quotas:\n  - user: {name: alice}\n    producer_byte_rate: 5000\n")
    command = ["replay", str(tmp_path / "usage"), "--quotas", str(plan), "--limits", "--all"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines if line.startswith(("  enough", "  nearly"))][:2] == [
        ["enough", "11000B"], ["nearly", "11000B"]
    ]  # fmt: skip
    assert main([*command, "--json"]) == 0
    entities = json.loads(capsys.readouterr().out)["entities"]
    assert main(["limits", str(tmp_path / "usage"), "--quotas", str(plan), "--json"]) == 0
    names = ("never_throttled_bytes_per_second", "tolerable_bytes_per_second")
    (expected,) = [
        [row[name] for name in names]
        for row in json.loads(capsys.readouterr().out)["entities"]
        if row["quota_type"] == "Produce" and row["user"] == "alice"
    ]
    found = {row["user"]: row["plans"][0] for row in entities if row["quota_type"] == "Produce"}
    assert [found["alice"][name] for name in names] == expected
    assert [found["bob"][name] for name in names] == [None, None]


def test_limits_need_a_plan(tmp_path, capsys):
    """Of the quotas in force `tidegate limits` tells."""
    assert main(["replay", str(tmp_path), "--in-force", "--limits"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "--limits needs --quotas: the quotas in force can change from row to row" in err
    assert "add --quotas FILE, or run `tidegate limits`" in err


@pytest.fixture
def hurried(tmp_path):
    """Return a record of a client that sends 10 kB a second for a minute, and a plan that lets it send half of that."""
    node = RecordingNode()
    node.start(_T0)
    for second in range(60):
        node.produce("alice", "c1", 10_000, _T0 + 1000 * second)
    write_events(tmp_path / "usage", node.events)
    plan = tmp_path / "half.yaml"
    plan.write_text("quotas:\n  - user: {name: alice}\n    producer_byte_rate: 5000\n")
    return [str(tmp_path / "usage"), "--quotas", str(plan)]


@pytest.mark.parametrize(
    ("options", "loops", "said"),
    [
        ([], ["closed"], "half: closed loop, a forecast: throttled clients send later"),
        (
            ["--loop", "closed", "--in-force"],
            ["closed", "open"],
            "in force: open loop, all times as recorded",
        ),
        (["--loop", "open"], ["open"], "half: open loop, all times as recorded"),
    ],
)
def test_a_plan_is_forecast_and_the_head_says_so(hurried, capsys, options, loops, said):
    """The quotas in force never are; a document says it too. What is forecast waits less than what is piled up."""
    assert main(["replay", *hurried, *options]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["loop", *loops]
    assert said in out.splitlines()
    assert main(["replay", *hurried, *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [plan["loop"] for plan in document["plans"]] == loops
    (half,) = [entity["plans"][0] for entity in document["entities"] if entity["quota_type"] == "Produce"]
    assert (half["throttle_ms"] > 600_000) == (loops[0] == "open")
    assert (half["recorded_requests"], half["waited_ms"] is None) == (60, loops[0] == "open")


def test_what_was_recorded_is_the_same_whatever_is_asked(tmp_path, capsys):
    """Of fetches that the plan cuts, has come later or tried again: requests, bytes once, throttles, since."""
    node = RecordingNode()
    quotas = [QuotaRecord(entity=(("user", "alice"),), key=key, value=value)
              for key, value in (("consumer_byte_rate", 2000.0), ("request_percentage", 0.048))]  # fmt: skip
    node.start(_T0, records=tuple(quotas))
    for second in range(60):
        node.fetch("alice", "c1", 6000, _T0 + 1000 * second, handler_ns=500_000)
    write_events(tmp_path / "usage", node.events)
    (tmp_path / "cut.yaml").write_text("quotas:\n  - user: {name: alice}\n    consumer_byte_rate: 100\n")
    for loop in ("open", "closed"):
        command = ["replay", str(tmp_path / "usage"), "--quotas", str(tmp_path / "cut.yaml"), "--loop", loop]
        assert main([*command, "--json"]) == 0
        entities = json.loads(capsys.readouterr().out)["entities"]
        outcomes = {entity["quota_type"]: entity["plans"][0] for entity in entities}
        for quota_type, amount, column in (("Fetch", "bytes", "fetch"), ("Request", "thread_ns", "request")):
            rows = [event for event in node.events if event["kind"] == "request"]
            held = [event for event in rows if event[f"{column}_throttle_ms"] > 0]
            each = 6000 if column == "fetch" else 500_000
            emptied = [event for event in rows if event["fetch_throttle_ms"] or event["request_throttle_ms"]]
            used = (60 - len(emptied)) * each if column == "fetch" else 60 * each
            expected = {"requests": 60, amount: used,
                        "throttled_requests": len(held), f"delayed_{amount}": min(len(held) * each, used),
                        "throttle_ms": sum(event[f"{column}_throttle_ms"] for event in held),
                        "first_throttled_ts_ms": min(event["ts_ms"] for event in held)}  # fmt: skip
            assert len(held) > 5
            assert {name: outcomes[quota_type][f"recorded_{name}"] for name in expected} == expected
        assert outcomes["Fetch"]["capped_fetches"] > 10
        assert main(command) == 0
        assert "user=alice · 60 requests, 17.6 KiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            ["--decisions"],
            "--decisions needs --loop open: in closed loop, requests do not keep their recorded times",
        ),
        (["--decisions", "--in-force"], "add --loop open, or remove --decisions"),
        (["--continue", "{out}"], "--continue needs --quotas and --loop open"),
        (
            ["--loop", "closed", "--continue", "{out}"],
            "add --loop open, here and to the replay of the earlier hours",
        ),
    ],
)
def test_what_a_forecast_cannot_do_is_refused(hurried, tmp_path, capsys, options, error):
    """Never is it done in another loop than was asked for; the hint says what to ask for."""
    out = str(tmp_path / "out")
    options = [option.format(out=out) for option in options]
    assert main(["replay", *hurried, "--out", out, *options]) == 2
    assert error in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_what_is_of_the_recorded_times_goes_with_them(hurried, tmp_path):
    """Single decisions in open loop, and always of the quotas in force; a forecast leaves no state to go on from."""
    out = str(tmp_path / "out")
    usage, *plan = hurried
    assert main(["replay", usage, "--in-force", "--decisions", "--out", out]) == 0
    assert main(["replay", usage, *plan, "--decisions", "--loop", "open", "--out", out]) == 0
    assert {"decisions", "state"} <= _tables(tmp_path / "out")
    assert main(["replay", usage, *plan, "--out", out]) == 0
    assert _tables(tmp_path / "out") == {"replay_by_client", "replay_by_entity"}


def _tables(out):
    return set(json.loads((out / "tidegate-results.json").read_text())["tables"])


_GROUP = """\
groups:
- name: etl
  members: [{user: {name: alice}}, {client-id: {name: c2}}, {client-id: {name: c-2}}]
  producer_byte_rate: 1kB
quotas: []
"""


def _traffic(directory):
    """Write what two clients produced in a minute, 900 bytes a second each, and a third."""
    node = RecordingNode()
    node.start(_T0)
    for second in range(60):
        node.produce("alice", "c1", 900, _T0 + 1000 * second)
        node.produce("bob", "c2", 900, _T0 + 1000 * second)
        node.produce("carol", "c3", 900, _T0 + 1000 * second)
    write_events(directory / "usage", node.events)
    return ["replay", str(directory / "usage")]


@pytest.mark.parametrize("loop", ["open", "closed"])
def test_groups_and_smooth_mode_stand_beside_plain_plans(tmp_path, capsys, loop):
    """Each limit by itself throttles nobody, a shared one does, and smooth mode sooner; who is in no group never is."""
    (tmp_path / "apart.yaml").write_text("quotas:\n- user: {default: true}\n  producer_byte_rate: 1kB\n")
    (tmp_path / "shared.yaml").write_text(_GROUP)
    (tmp_path / "smooth.yaml").write_text("settings: {tidegate.quota.smooth: all}\n" + _GROUP)
    files = [f"--quotas={tmp_path / name}.yaml" for name in ("apart", "shared", "smooth")]
    command = [*_traffic(tmp_path), *files, "--loop", loop]
    assert main(command) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("group=etl · 120 requests") for line in lines)
    assert "client-id=c-2 matches no client in the record; did you mean c2?" in " ".join(out.split())
    assert main([*command, "--json"]) == 0
    found = {}
    for entity in json.loads(capsys.readouterr().out)["entities"]:
        for plan in entity["plans"]:
            if entity["quota_type"] == "Produce" and plan["throttled_requests"]:
                assert entity["tags"] == {"group": "etl"}
                assert plan["limit_bytes_per_second"] == 1000.0
                found[plan["plan"]] = plan["first_throttled_ts_ms"] - _T0
    assert found.keys() == {"shared", "smooth"}
    assert found["smooth"] <= 3000 < found["shared"]


@pytest.mark.parametrize(
    ("text", "part"),
    [(_GROUP, "groups"), ("settings: {tidegate.quota.smooth: all}\nquotas: []\n", "settings")],
)
def test_limits_of_what_goes_beyond_kafka_are_refused_before_rows_are_read(tmp_path, capsys, text, part):
    """They would be looked for by other rules."""
    (tmp_path / "p.yaml").write_text(text)
    quotas = ["--quotas", str(tmp_path / "p.yaml")]
    for command in (["replay", "/nowhere", "--limits", *quotas], ["limits", "/nowhere", *quotas]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert f"has {part}, but limits are found by Kafka's own rules\nhint: " in error


def test_hours_go_on_under_groups_and_smooth_mode(tmp_path, capsys):
    """An hour more of the record, and what a second replay of all says."""
    plan = tmp_path / "p.yaml"
    plan.write_text("settings: {tidegate.quota.smooth: all}\n" + _GROUP)
    begin_ms = _T0 - _T0 % 3_600_000
    node = RecordingNode()
    node.start(begin_ms)
    for second in range(0, 7200, 20):
        node.produce("alice", "c1", 30_000, begin_ms + 1000 * second)
    write_events(tmp_path / "usage" / "parquet", node.events)
    command = ["replay", str(tmp_path / "usage"), "--quotas", str(plan), "--loop", "open", "--json"]
    middle = "2023-11-14T23:00"
    assert main([*command, "--to", middle, "--out", str(tmp_path / "first")]) == 0
    capsys.readouterr()
    throttled = []
    for more in (["--from", middle, "--continue", str(tmp_path / "first")], ["--from", middle], []):
        assert main([*command, *more]) == 0
        (entity,) = [
            each
            for each in json.loads(capsys.readouterr().out)["entities"]
            if each["quota_type"] == "Produce"
        ]
        throttled.append(entity["plans"][0]["longest_throttle_ms"])
    assert throttled[0] == throttled[2] > throttled[1]
