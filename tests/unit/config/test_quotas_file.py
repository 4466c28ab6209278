"""quotas.yaml: what it says, what it refuses, and the round trip through `dump_quotas_file`."""

import pickle
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidegate.callbacks import QuotaGroups
from tidegate.config.plain_yaml import MAX_FILE_BYTES, ConfigFileError
from tidegate.config.quotas_file import (
    MAX_ENTRIES,
    MAX_MEMBERS,
    QuotaEntry,
    QuotaGroup,
    QuotasFile,
    load_quotas_file,
    parse_quotas_file,
)
from tidegate.config.quotas_text import dump_quotas_file
from tidegate.config.windows import Windows
from tidegate.errors import ConfigError
from tidegate.quota import QuotaType
from tidegate.quota.admin.definitions import QuotaDefinitions, QuotaRecord
from tidegate.quota.managers.extensions import Extensions
from tidegate.quota.measure.smooth import SmoothMode
from tidegate.quota.measure.window import QuotaWindow

DOCUMENT = Path(__file__).parents[3] / "docs" / "quotas-file.md"
MIB = 1024 * 1024
QUOTA = "quotas:\n- user: {name: alice}\n  "
MEMBER = "[{user: {name: alice}}]"
MEMBER_HINT = 'write - user: {name: "..."} or - client-id: {name: "..."}'


def _example() -> str:
    text = DOCUMENT.read_text(encoding="utf-8")
    return text.split("```yaml\n")[1].split("```")[0]


def test_the_documented_example_is_read() -> None:
    """Every line of it means what the page says."""
    quotas = parse_quotas_file(_example())
    assert quotas.windows == {"quota.window.num": 11, "quota.window.size.seconds": 1}
    assert quotas.entries == (
        QuotaEntry(
            entity=(("user", "checkout"),),
            values={"producer_byte_rate": 20.0 * MIB, "request_percentage": 150.0},
            owner="payments team",
            reason="measured on Black Friday, doubled",
        ),
        QuotaEntry(
            entity=(("client-id", None),),
            values={"producer_byte_rate": 1.0 * MIB, "consumer_byte_rate": 2.0 * MIB},
        ),
        QuotaEntry(
            entity=(("client-id", "42"), ("user", "<default>")), values={"controller_mutation_rate": 2.5}
        ),
        QuotaEntry(entity=(("ip", "192.0.2.7"),), values={"connection_creation_rate": 10.0}),
    )


def test_the_documented_example_beyond_kafka_is_read() -> None:
    """Groups and settings."""
    text = DOCUMENT.read_text(encoding="utf-8").split("```yaml\n")[2].split("```")[0]
    quotas = parse_quotas_file(text)
    assert quotas.settings == {
        "tidegate.quota.smooth": "client-id=loader;user=etl",
        "tidegate.quota.smooth.burst.seconds": 2,
        "tidegate.quota.debt.max.seconds": 60,
    }
    assert quotas.groups == (
        QuotaGroup(
            name="nightly",
            members=(("user", "alice"), ("user", "bob"), ("client-id", "export")),
            values={"producer_byte_rate": 1e7, "request_percentage": 50.0},
            owner="data team",
        ),
    )
    extensions = Extensions()
    assert [extensions.apply(record) for record in quotas.records()] == [False, True, True, True, True]
    assert extensions.smooth_mode("etl", "") == SmoothMode(burst_s=2, debt_max_s=60, observed=False)
    groups = quotas.members_and_limits()
    assert groups.group_of("carol", "export") == "nightly"
    assert groups.limit("nightly", "producer_byte_rate") == 1e7


def test_the_documented_settings_make_the_same_groups() -> None:
    """What the page says a broker is given."""
    text = DOCUMENT.read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.startswith("    client.quota.callback.group")]
    callback = QuotaGroups()
    callback.configure(dict(line.split("=", 1) for line in lines))
    groups = parse_quotas_file(text.split("```yaml\n")[2].split("```")[0]).members_and_limits()
    for user, client_id in (("alice", "x"), ("bob", ""), ("carol", "export"), ("carol", "x")):
        for quota_type in QuotaType:
            tags, group = (
                callback.quota_metric_tags(quota_type, user, client_id),
                groups.group_of(user, client_id),
            )
            assert tags.get("group") == group
            if group is not None:
                assert callback.quota_limit(quota_type, tags) == groups.limit(group, quota_type.key)


def test_the_documented_error_is_the_real_one() -> None:
    """The page shows the sentence and the hint that a reader gets."""
    text = "version: 1\n\n\n\nquotas:\n- producer_byte_rate: 1\n  user: {name: no}\n"
    with pytest.raises(ConfigFileError) as caught:
        parse_quotas_file(text)
    shown = f"    {caught.value}\n    hint: {caught.value.hint}\n"
    assert shown in DOCUMENT.read_text(encoding="utf-8")


def test_records_feed_the_engine() -> None:
    """Applied to definitions, every value is there."""
    quotas = parse_quotas_file(_example())
    definitions = QuotaDefinitions()
    definitions.apply(quotas.records())
    assert [dict(definitions.values(entry.entity)) for entry in quotas.entries] == [
        entry.values for entry in quotas.entries
    ]
    assert next(quotas.records()) == QuotaRecord(
        entity=(("user", "checkout"),), key="producer_byte_rate", value=20.0 * MIB
    )


def test_window_settings_fall_back_to_kafkas_defaults() -> None:
    """What the file leaves out is 11 samples of 1 s."""
    quotas = parse_quotas_file("quotas: []\nwindows: {quota.window.num: 5}")
    windows = Windows.of(quotas.windows)
    assert windows.rate == QuotaWindow(samples=5, window_ms=1000)
    assert windows.mutation == QuotaWindow(samples=11, window_ms=1000)


def test_file_travels_to_executors() -> None:
    """It pickles to an equal one."""
    quotas = parse_quotas_file(_example())
    assert pickle.loads(pickle.dumps(quotas)) == quotas


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("4MiB", 4.0 * MIB),
        ("10M", 10.0 * MIB),
        ('"1.5 GiB"', 1536.0 * MIB),
        ("2 kB", 2000.0),
        ("1000", 1000.0),
        ('"1000"', 1000.0),
        ("9223372036854775807", 2.0**63),
    ],
)
def test_byte_rates(value: str, stored: float) -> None:
    """Plain numbers and sizes, quoted or not."""
    quotas = parse_quotas_file(f"{QUOTA}producer_byte_rate: {value}")
    assert quotas.entries[0].values == {"producer_byte_rate": stored}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[]", "1: the file must be a mapping, got a list", None),
        ("windows: {}", "1: 'quotas' is missing", "write 'quotas: []' for an empty list"),
        ("quota: []", "1: unknown key 'quota' in the file", "did you mean 'quotas'?"),
        ("quotas:", "1: quotas must be a list, got ''", "write 'quotas: []' for an empty list"),
        ("quotas: []\nversion: 2", "2: version must be 1, got '2'", None),
        ("quotas: [a]", "1: a quota must be a mapping, got 'a'", None),
        (
            "quotas: []\nwindows: {quota.window.num: 0}",
            "2: quota.window.num must be a whole number from 1 to 3600, got 0",
            None,
        ),
        (
            "quotas: []\nwindows: {quota.window.num: 11.0}",
            "2: quota.window.num must be a whole number from 1 to 3600, got 11.0",
            None,
        ),
        (
            "quotas: []\nwindows: {quota.window.nun: 5}",
            "2: unknown key 'quota.window.nun' in windows",
            "did you mean 'quota.window.num'?",
        ),
        ("quotas:\n- producer_byte_rate: 1", "2: an entity needs a user, a client-id or an ip", None),
        (
            "quotas:\n- user: alice\n  producer_byte_rate: 1",
            "2: user must be a mapping, got 'alice'",
            'write user: {name: "..."} or user: {default: true}',
        ),
        (
            "quotas:\n- user: {}\n  producer_byte_rate: 1",
            "2: user must have either a name or default: true",
            'write user: {name: "..."} or user: {default: true}',
        ),
        (
            "quotas:\n- ip: {default: true, name: x}\n  producer_byte_rate: 1",
            "2: ip must have either a name or default: true",
            'write ip: {name: "..."} or ip: {default: true}',
        ),
        (
            "quotas:\n- user: {default: yes}\n  producer_byte_rate: 1",
            "2: default must be true, got 'yes'",
            'write user: {name: "..."} or user: {default: true}',
        ),
        (
            'quotas:\n- user: {default: "true"}\n  producer_byte_rate: 1',
            "2: default must be true, got 'true'",
            'write user: {name: "..."} or user: {default: true}',
        ),
        (
            "quotas:\n- user: {name: 1e3}\n  producer_byte_rate: 1",
            "2: name must be quoted: YAML reads 1e3 without quotes as a number",
            'write "1e3"',
        ),
        (
            "quotas:\n- ip: {name: localhost}\n  connection_creation_rate: 1",
            "2: ip='localhost' is not an IPv4 or IPv6 address",
            None,
        ),
        (
            f"{QUOTA}producer_byte_rate: 1\n- user: {{name: alice}}\n  request_percentage: 1",
            "4: repeated entity user='alice', first on line 2",
            None,
        ),
        (
            "quotas: [{user: {name: a}, producer_byte_rate: 1}, {user: {name: a}, producer_byte_rate: 1}]",
            "1: repeated entity user='a', first on line 1",
            None,
        ),
        (
            f"{QUOTA}owner: me",
            "2: no quota is set for user='alice'",
            "keys are producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate, "
            "connection_creation_rate",
        ),
        (
            f"{QUOTA}produce_byte_rate: 1",
            "3: unknown key 'produce_byte_rate' in a quota",
            "did you mean 'producer_byte_rate'?",
        ),
        (
            f"{QUOTA}request_percentage: .nan",
            "3: request_percentage must be finite, got nan for user='alice'",
            "omit the key for no limit",
        ),
        (
            f"{QUOTA}producer_byte_rate: -inf",
            "3: producer_byte_rate must be finite, got -inf for user='alice'",
            "omit the key for no limit",
        ),
        (
            f"{QUOTA}producer_byte_rate: 0",
            "3: producer_byte_rate must be greater than 0, got 0 for user='alice'",
            "omit the key for no limit",
        ),
        (
            f"{QUOTA}producer_byte_rate: 1.5",
            "3: producer_byte_rate must be a whole number, got 1.5 for user='alice'",
            None,
        ),
        (
            f"{QUOTA}producer_byte_rate: 1e6",
            "3: producer_byte_rate must be a number, got '1e6'",
            "YAML versions read 1e6 differently; write plain digits, such as 1000",
        ),
        (
            f"{QUOTA}producer_byte_rate: 4mib",
            "3: producer_byte_rate: '4mib' has unknown unit 'mib'",
            "did you mean MiB?",
        ),
        (
            f"{QUOTA}request_percentage: 4MiB",
            "3: request_percentage must be a number, got '4MiB'",
            None,
        ),
        (
            f"{QUOTA}connection_creation_rate: 5",
            "3: connection_creation_rate is a quota of ip, got 5 for user='alice'",
            None,
        ),
        (
            f"{QUOTA}producer_byte_rate: 5\n  owner: 42",
            "4: owner must be quoted: YAML reads 42 without quotes as a number",
            'write "42"',
        ),
        (
            f"{QUOTA}producer_byte_rate: 5\n  reason: {'x' * 1001}",
            "4: reason must be at most 1000 characters, got 1001",
            None,
        ),
        (
            "quotas: []\nsettings: {tidegate.quota.smoth: all}",
            "2: unknown key 'tidegate.quota.smoth' in settings",
            "did you mean 'tidegate.quota.smooth'?",
        ),
        (
            "quotas: []\nsettings: {tidegate.quota.smooth: loader}",
            "2: tidegate.quota.smooth has 'loader', expected all, none, or entities such as "
            "user=alice;client-id=loader;user=ops,client-id=x",
            None,
        ),
        (
            "quotas: []\nsettings:\n  tidegate.quota.smooth: all\n  tidegate.quota.smooth.burst.seconds: 0",
            "4: tidegate.quota.smooth.burst.seconds must be a whole number from 1 to 2147483647, got 0",
            None,
        ),
        (
            "quotas: []\nsettings: {tidegate.quota.debt.max.seconds: 1.5}",
            "2: tidegate.quota.debt.max.seconds must be a whole number from 0 to 2147483647, got 1.5",
            None,
        ),
        (
            "quotas: []\nsettings: {tidegate.quota.smooth.burst.seconds: 5}",
            "2: tidegate.quota.smooth.burst.seconds has no effect without tidegate.quota.smooth",
            "add tidegate.quota.smooth: all, or a list of entities",
        ),
        (
            "quotas: []\ngroups: {}",
            "2: groups must be a list, got a mapping",
            "write 'groups: []' for an empty list",
        ),
        (
            f"quotas: []\ngroups:\n- members: {MEMBER}",
            "3: a group needs name",
            "a group has a name, members, and at least one quota",
        ),
        (
            "quotas: []\ngroups: [{name: a, producer_byte_rate: 1}]",
            "2: a group needs members",
            "a group has a name, members, and at least one quota",
        ),
        (
            f"quotas: []\ngroups:\n- name: a b\n  members: {MEMBER}",
            "3: the name of a group must be 1 to 100 of A-Z, a-z, 0-9, '_', '.' and '-', got 'a b'",
            None,
        ),
        (
            "quotas: []\ngroups: [{name: no, members: []}]",
            "2: name must be quoted: YAML reads no without quotes as a boolean",
            'write "no"',
        ),
        (
            "quotas: []\ngroups: [{name: a, members: [], producer_byte_rate: 1}]",
            "2: group 'a' has no members",
            MEMBER_HINT,
        ),
        (
            f"quotas: []\ngroups: [{{name: a, members: {MEMBER}}}]",
            "2: no quota is set for group 'a'",
            "keys are producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate",
        ),
        (
            f"quotas: []\ngroups: [{{name: a, members: {MEMBER}, produce_byte_rate: 1}}]",
            "2: unknown key 'produce_byte_rate' in a group",
            "did you mean 'producer_byte_rate'?",
        ),
        (
            f"quotas: []\ngroups: [{{name: a, members: {MEMBER}, request_percentage: 0}}]",
            "2: request_percentage must be greater than 0, got 0 for group='a'",
            "omit the key for no limit",
        ),
        (
            "quotas: []\ngroups: [{name: a, members: [alice]}]",
            "2: a member must be a mapping, got 'alice'",
            None,
        ),
        (
            "quotas: []\ngroups: [{name: a, members: [{usr: {name: alice}}]}]",
            "2: unknown key 'usr' in a member",
            "did you mean 'user'?",
        ),
        (
            "quotas: []\ngroups: [{name: a, members: [{user: {name: alice}, client-id: {name: b}}]}]",
            "2: a member must be one user or one client-id",
            MEMBER_HINT,
        ),
        (
            "quotas: []\ngroups: [{name: a, members: [{user: {default: true}}]}]",
            "2: a member must have a name, got default: true",
            "for clients in no group, set a default in 'quotas'",
        ),
        (
            'quotas: []\ngroups: [{name: a, members: [{user: {name: ""}}]}]',
            "2: the name of a user must not be empty",
            None,
        ),
        (
            f"quotas: []\ngroups:\n- {{name: a, members: {MEMBER}, producer_byte_rate: 1}}\n"
            f"- {{name: b, members: {MEMBER}, producer_byte_rate: 1}}",
            "4: user='alice' is already in group 'a'",
            None,
        ),
        (
            "quotas: []\ngroups: [{name: a, members: [{user: {name: x}}, {user: {name: x}}]}]",
            "2: user='x' is twice in group 'a'",
            None,
        ),
        (
            f"quotas: []\ngroups:\n- {{name: a, members: {MEMBER}, producer_byte_rate: 1}}\n- {{name: a, members: []}}",
            "4: repeated group 'a', first on line 3",
            None,
        ),
        (
            f"groups: [{{name: a, members: {MEMBER}, producer_byte_rate: 1}}]\nquotas:\n"
            "- user: {name: alice}\n  client-id: {name: x}\n  producer_byte_rate: 2",
            "3: user='alice' is in group 'a', which replaces its own quota",
            "remove the quota, or remove the member from the group",
        ),
    ],
)
def test_mistakes_are_told_with_line_and_hint(text: str, message: str, hint: str | None) -> None:
    """One error each, the exact sentence; what is hinted at nowhere else is where the file is described."""
    with pytest.raises(ConfigFileError) as caught:
        parse_quotas_file(text, name="plan.yaml")
    otherwise = "see docs/quotas-file.md for the format and an example"
    assert (str(caught.value), caught.value.hint) == (f"plan.yaml:{message}", hint or otherwise)


def test_number_of_quotas_is_bounded() -> None:
    """The bound is told with the number there is."""
    with pytest.raises(ConfigFileError, match=r"^quotas.yaml:1: quotas must be at most 100000, got 100001$"):
        parse_quotas_file(f"quotas: [{'x,' * (MAX_ENTRIES + 1)}]")


def test_number_of_groups_and_members_is_bounded() -> None:
    """Of the members of all groups together."""
    with pytest.raises(ConfigFileError, match=r"groups must be at most 100000, got 100001$"):
        parse_quotas_file(f"quotas: []\ngroups: [{'x,' * (MAX_ENTRIES + 1)}]")
    halves = [",".join(f"{{user: {{name: {group}{n}}}}}" for n in range(MAX_MEMBERS // 2)) for group in "ab"]
    groups = ",".join(
        f"{{name: {group}, producer_byte_rate: 1, members: [{half}]}}"
        for group, half in zip("ab", halves, strict=True)
    )
    text = f"quotas: []\ngroups: [{groups}]"
    assert len(parse_quotas_file(text).members_and_limits().members) == MAX_MEMBERS
    with pytest.raises(ConfigFileError, match=r"members of all groups must be at most 10000$"):
        parse_quotas_file(text[:-1] + ",{name: c, members: [{user: {name: x}}]}]")


def test_file_is_loaded_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    path = tmp_path / "quotas.yaml"
    path.write_bytes(b"\xef\xbb\xbfquotas: []\r\n")
    assert load_quotas_file(path) == QuotasFile()
    assert load_quotas_file(str(path)) == QuotasFile()


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """Missing, a directory, too large, not UTF-8: one error with the path."""
    path = tmp_path / "q.yaml"
    with pytest.raises(ConfigFileError) as caught:
        load_quotas_file(path)
    assert str(caught.value) == f"{path}: cannot read the file: No such file or directory"
    assert caught.value.hint == "check the path and its permissions"
    with pytest.raises(ConfigFileError, match="cannot read the file: Is a directory"):
        load_quotas_file(tmp_path)
    path.write_bytes(b"quotas: []\n# \xff\n")
    with pytest.raises(ConfigFileError, match=r"q\.yaml:2: file is not UTF-8$"):
        load_quotas_file(path)
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigFileError, match=rf"q\.yaml: file must be at most {MAX_FILE_BYTES} bytes$"):
        load_quotas_file(path)


def test_dump_is_easy_to_read() -> None:
    """Byte rates as sizes where they come out even, names in quotes."""
    quotas = QuotasFile(
        entries=(
            QuotaEntry(
                entity=(("client-id", None), ("user", 'a"b\n\u2028\U0001f600')),
                values={
                    "producer_byte_rate": 3.0 * MIB,
                    "consumer_byte_rate": 1500.0,
                    "request_percentage": 1e-7,
                },
                owner="x",
            ),
        ),
        windows={"quota.window.num": 5},
    )
    assert dump_quotas_file(quotas) == (
        "version: 1\n"
        "windows:\n"
        "  quota.window.num: 5\n"
        "quotas:\n"
        '  - user: {name: "a\\"b\\x0a\\u2028\U0001f600"}\n'
        "    client-id: {default: true}\n"
        "    producer_byte_rate: 3MiB\n"
        "    consumer_byte_rate: 1500\n"
        "    request_percentage: 0.0000001\n"
        '    owner: "x"\n'
    )


@pytest.mark.parametrize(
    "entry",
    [
        QuotaEntry(entity=(("user", "a"),), values={"producer_byte_rate": float("nan")}),
        QuotaEntry(entity=(("user", "a"),), values={}),
        QuotaEntry(entity=(("ip", "host"),), values={"connection_creation_rate": 1.0}),
        QuotaEntry(entity=(("user", "a"),), values={"request_percentage": 1.0}, owner="x" * 1001),
        QuotaGroup(name="a b", members=(("user", "a"),), values={"request_percentage": 1.0}),
        QuotaGroup(name="a", members=(), values={"request_percentage": 1.0}),
        QuotaGroup(name="a", members=(("user", "a"),), values={}),
        QuotaGroup(name="a", members=(("user", "a"),), values={"connection_creation_rate": 1.0}),
        {"tidegate.quota.smooth": "a"},
        {"tidegate.quota.debt.max.seconds": -1},
    ],
)
def test_what_could_not_be_read_back_is_not_written(
    entry: QuotaEntry | QuotaGroup | dict[str, str | int],
) -> None:
    """A live cluster may hold more than a file of ours says."""
    given = {QuotaEntry: "entries", QuotaGroup: "groups", dict: "settings"}[type(entry)]
    quotas = QuotasFile(**{given: entry if isinstance(entry, dict) else (entry,)})
    with pytest.raises(ConfigError):
        dump_quotas_file(quotas)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAMES = (
    st.none()
    | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
    | st.sampled_from(["no", "1e3", "<default>", "~", "a: b", "*x", "\ufeff", "\x85", "\ue000"])
)
WHOLE = st.integers(min_value=1, max_value=2**63 - 1).map(float)
POSITIVE = st.floats(min_value=5e-324, allow_infinity=False, allow_nan=False)
CLIENT_VALUES = st.dictionaries(
    st.sampled_from(["producer_byte_rate", "consumer_byte_rate"]), WHOLE, min_size=1
) | st.dictionaries(st.sampled_from(["request_percentage", "controller_mutation_rate"]), POSITIVE, min_size=1)
CLIENT_ENTITIES = st.dictionaries(st.sampled_from(["client-id", "user"]), NAMES, min_size=1)
IP_ENTITIES = st.fixed_dictionaries({"ip": st.none() | st.ip_addresses().map(str)})
IP_VALUES = st.fixed_dictionaries(
    {"connection_creation_rate": st.integers(min_value=1, max_value=2**31 - 1).map(float)}
)


def _entries(entities: st.SearchStrategy, values: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(
        lambda entity, values, owner, reason: QuotaEntry(
            entity=tuple(sorted(entity.items())), values=values, owner=owner, reason=reason
        ),
        entities,
        values,
        st.none() | TEXTS,
        st.none() | TEXTS,
    )


GROUPS = st.builds(
    lambda name, members, values, owner, reason: QuotaGroup(
        name=name, members=tuple(members), values=values, owner=owner, reason=reason
    ),
    st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True),
    st.lists(  # no entry has such names
        st.tuples(st.sampled_from(["user", "client-id"]), st.uuids().map(lambda name: f"{name}: *'\"")),
        min_size=1,
        max_size=3,
    ),
    CLIENT_VALUES,
    st.none() | TEXTS,
    st.none() | TEXTS,
)
SETTINGS = st.sampled_from(
    [
        {},
        {"tidegate.quota.smooth": "all", "tidegate.quota.smooth.burst.seconds": 7},
        {"tidegate.quota.smooth": "user=%3B*;client-id=<default>", "tidegate.quota.debt.max.seconds": 0},
    ]
)
FILES = st.builds(
    lambda entries, windows, groups, settings: QuotasFile(
        entries=tuple(entries), windows=windows, groups=tuple(groups), settings=settings
    ),
    st.lists(
        _entries(CLIENT_ENTITIES, CLIENT_VALUES) | _entries(IP_ENTITIES, IP_VALUES),
        max_size=5,
        unique_by=lambda entry: entry.entity,
    ),
    st.dictionaries(
        st.sampled_from(["quota.window.num", "controller.quota.window.size.seconds"]),
        st.integers(min_value=1, max_value=3600),
    ),
    st.lists(GROUPS, max_size=3, unique_by=lambda group: group.name),
    SETTINGS,
)


@given(quotas=FILES)
def test_what_is_dumped_reads_back_the_same(quotas: QuotasFile) -> None:
    """Any file that can be written is read as the same quotas, doubles bit for bit."""
    members = [member for group in quotas.groups for member in group.members]
    assume(len(members) == len(set(members)))
    assert parse_quotas_file(dump_quotas_file(quotas)) == quotas


def test_values_are_kept_as_they_were_written():
    """Units and all, for those who show them; equality does not ask."""
    text = 'quotas:\n  - user: {name: a}\n    producer_byte_rate: "20 MB"\n    request_percentage: 150\n'
    (entry,) = parse_quotas_file(text).entries
    assert entry.texts == {"producer_byte_rate": "20 MB", "request_percentage": "150"}
    assert entry == QuotaEntry(entity=entry.entity, values=entry.values)
