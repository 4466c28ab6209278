"""The tables of a replay: plans beside one another, in 80 columns."""

import pytest
from rich.cells import cell_len
from tests.unit.pipeline.report.rows import HOSTILE, outcome

from tidegate.pipeline.replay.plan import IN_FORCE, Plan, in_force_plan
from tidegate.pipeline.report.compared import compared
from tidegate.pipeline.report.replay_report import limit_of_row, replay_lines
from tidegate.quota.admin.definitions import QuotaRecord

_FIRST_MS = 1_700_000_000_000
_LARGEST = 2**63 - 1


def _plan(name="p", records=(), **texts):
    return Plan(name=name, records=tuple(records), **texts)


def _lines(plans, rows, *, top=20, show_all=False, width=80):
    found = compared(plans, rows)
    return [line.plain for line in replay_lines(plans, found, top=top, show_all=show_all, width=width)]


def _cells(lines, label):
    """Return the cells of the first line with a label."""
    line = next(line for line in lines if line.startswith(f"  {label} "))
    return line.split()[len(label.split()) :]


def _throttled(plan, **columns):
    usual = {"requests": 1000, "amount": 4000, "throttled_requests": 250, "throttle_ms": 90_000}
    return outcome(plan, first_throttled_ts_ms=_FIRST_MS, longest_throttle_ms=1500, **(usual | columns))


def test_plans_stand_beside_one_another_and_what_really_happened():
    """A line for each measure: the record, then the plans; in the order in which they were given."""
    plans = [_plan("loose"), _plan("tight")]
    rows = [
        _throttled("tight", client_id="loader", bound=1048576.0, delayed_amount=1000,
                   recorded_throttled_requests=10, recorded_throttle_ms=700),
        outcome("loose", client_id="loader", bound=4194304.0, requests=1000, amount=4000,
                recorded_throttled_requests=10, recorded_throttle_ms=700),
    ]  # fmt: skip
    lines = _lines(plans, rows)
    assert lines[0].split() == ["produce", "recorded", "loose", "tight"]
    assert lines[1].split() == ["loop", "open", "open"]
    assert lines[3] == "client-id=loader · 1,000 requests, 3.9 KiB"
    assert _cells(lines, "limit/s") == ["4", "MiB", "1", "MiB"]
    assert _cells(lines, "throttled") == ["1.0%", "never", "25.0%"]
    assert _cells(lines, "delay") == ["700", "ms", "–", "1m30s"]
    assert _cells(lines, "longest") == ["0", "ms", "–", "1.5", "s"]
    assert _cells(lines, "delayed") == ["–", "–", "25.0%"]
    assert _cells(lines, "since") == ["–", "–", "22:13:20"]
    assert "since: time of the first throttle, UTC on 2023-11-14" in lines


def test_the_head_says_in_which_loop_each_plan_was_replayed():
    """A forecast counts each attempt of a fetch; the record is told in what was recorded."""
    plans = [_plan("p", is_closed=True), in_force_plan()]
    rows = [
        _throttled(plan, client_id=client, quota_type="Fetch", recorded_throttled_requests=100)
        for plan in ("p", IN_FORCE)
        for client in ("c", "d")
    ]
    for row in rows[:2]:
        row |= {"requests": 1600, "amount": 9000, "recorded_requests": 1000, "recorded_amount": 4000}
    lines = _lines(plans, rows)
    assert lines[1].split() == ["loop", "closed", "open"]
    (heading,) = [line for line in lines if line.startswith("client-id=c · ")]
    assert heading.endswith(" · 1,000 requests, 3.9 KiB")
    assert _cells(lines, "requests") == ["1,000", "1,600", "1,000"]
    assert _cells(lines, "throttled") == ["10.0%", "15.6%", "25.0%"]  # both together
    of_client = lines[lines.index("client-id=c · 1,000 requests, 3.9 KiB") :]
    assert _cells(of_client, "throttled") == ["10.0%", "15.6%", "25.0%"]


def test_dates_are_shown_where_there_are_several():
    """Times of one day need none."""
    rows = [_throttled("p", client_id="a"), _throttled("p", client_id="b")]
    rows[1]["first_throttled_ts_ms"] += 86_400_000
    lines = _lines([_plan()], rows)
    assert [line.split() for line in lines if "2023-" in line][1:] == [["2023-11-14"], ["2023-11-15"]]


@pytest.mark.parametrize(
    ("quota_type", "key", "bound", "text", "shown"),
    [
        ("Produce", "producer_byte_rate", 2e7, "20MB", "20MB"),
        ("Fetch", "consumer_byte_rate", 1610612736.0, "1.5 GiB", "1.5 GiB"),
        ("Fetch", "consumer_byte_rate", 1048576.0, "1048576", "1048576 B"),
        ("Produce", "producer_byte_rate", 2e7, "00000000020000kB", "20 MB"),
        ("Produce", "producer_byte_rate", 60000.0, None, "60 kB"),
        ("Request", "request_percentage", 12.5, "12.50", "12.50 %"),
        ("Request", "request_percentage", 12.5, None, "12.5 %"),
        ("ControllerMutation", "controller_mutation_rate", 2.0, None, "2"),
        ("Produce", "producer_byte_rate", float("nan"), None, "nan B"),
    ],
)
def test_limits_are_shown_as_they_were_written(quota_type, key, bound, text, shown):
    """In the unit of the file; where they are in none, exactly."""
    plan = _plan(limit_texts={} if text is None else {(key, bound): text})
    lines = _lines([plan], [outcome(client_id="a", quota_type=quota_type, bound=bound)], show_all=True)
    assert " ".join(_cells(lines, "limit" if quota_type == "Request" else "limit/s")) == shown


def test_only_who_has_something_to_say_is_shown():
    """Throttled, or with a limit of its own; --all shows the others."""
    record = QuotaRecord(entity=(("client-id", "named"),), key="producer_byte_rate", value=1e9)
    rows = [
        outcome(client_id="named", requests=1, bound=1e9),
        outcome(client_id="silent", requests=9),
        outcome(client_id="was", requests=2, recorded_throttled_requests=1),
    ]
    text = "\n".join(_lines([_plan(records=[record])], rows))
    assert "client-id=was" in text
    assert "client-id=named" in text
    assert "client-id=silent" not in text
    assert "not shown: 1 entity with no throttling and no individual limit; see --all" in text
    assert "client-id=silent" in "\n".join(_lines([_plan(records=[record])], rows, show_all=True))


def test_tables_are_cut_after_the_longest_delays():
    """Who would have waited longest comes first; how many more there are is said."""
    rows = [_throttled("p", user=f"u{number}", throttle_ms=number) for number in range(5)]
    lines = _lines([_plan()], rows, top=2)
    assert [line.partition(" ")[0] for line in lines if line.startswith("user=")] == ["user=u4", "user=u3"]
    assert "3 more: see --top" in lines
    assert _cells(lines, "delay") == ["–", "10", "ms"]  # all five together


def test_a_client_that_is_alone_is_compared_whatever_level_its_quota_is_of():
    """One plan limits the user, the other the client id: one block, and whose limit it is."""
    only = {"only_user": "carol", "only_client_id": "batch"}
    rows = [
        _throttled("a", user="carol", bound=1e6, **only),
        _throttled("b", client_id="batch", bound=2e6, **only),
    ]
    lines = _lines([_plan("a"), _plan("b")], rows)
    assert lines[3].startswith("user=carol client-id=batch · ")
    assert _cells(lines, "limit of") == ["user", "client-id"]
    assert sum(" · " in line for line in lines) == 1


def test_two_entities_of_one_client_in_one_plan_stay_two():
    """In force, a client may be counted under one entity and later under another."""
    only = {"only_user": "carol", "only_client_id": "batch"}
    rows = [_throttled(IN_FORCE, user="carol", **only), _throttled(IN_FORCE, client_id="batch", **only)]
    lines = _lines([in_force_plan()], rows)
    assert sum(" · " in line for line in lines) == 2


def test_a_plan_that_counts_these_clients_with_others_is_blank():
    """Nothing is invented, and the blank is explained."""
    lines = _lines([_plan("a"), _plan("b")], [_throttled("a", client_id="x"), _throttled("b", user="y")])
    assert _cells(lines[9:], "throttled") == ["never", "25.0%"]
    assert "blank: the plan counts these clients together with others" in lines


@pytest.mark.parametrize("plans", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("quota_type", ["Produce", "Request", "ControllerMutation"])
def test_hostile_names_and_huge_numbers_fit_into_80_columns(plans, quota_type):
    """No line is longer, no digit is cut, nothing but printable characters."""
    names = [f"{HOSTILE[at % len(HOSTILE)]}{at}" for at in range(plans)]
    of_plans = [_plan(name) for name in names]
    huge = dict.fromkeys(
        ("requests", "amount", "throttled_requests", "throttle_ms", "longest_throttle_ms", "delayed_amount",
         "rejected_mutations", "recorded_throttled_requests", "recorded_throttle_ms",
         "recorded_longest_throttle_ms", "recorded_rejected_mutations"), _LARGEST,
    )  # fmt: skip
    huge |= {"first_throttled_ts_ms": 2**62, "quota_type": quota_type, "bound": float(_LARGEST)}
    rows = [outcome(plan, user=user, client_id=user, **huge) for plan in names for user in HOSTILE]
    lines = _lines(of_plans, rows)
    assert max(map(cell_len, lines)) <= 80
    assert all(line.isprintable() for line in lines)
    assert "".join(lines).count("106,751,991,167d") >= plans * len(HOSTILE)  # 2**63 ms
    if quota_type == "ControllerMutation":
        assert "".join(lines).count("9,223,372,036,854,775,807") >= plans * len(HOSTILE)


def test_five_plans_fit_beside_one_another():
    """With ordinary numbers: one table."""
    names = ["tight", "loose", "by-user", "default-only", "now-and-a-half"]
    rows = [_throttled(name, client_id="loader", bound=250_000.0) for name in names]
    lines = _lines([*map(_plan, names)], rows)
    assert len(_cells(lines, "throttled")) == 6
    assert max(map(len, lines)) <= 80


def test_a_file_gets_whole_names():
    """Where there is room for them."""
    lines = _lines([_plan()], [_throttled("p", client_id="c" * 150)], width=240)
    assert lines[3].startswith(f"client-id={'c' * 150} · ")


@pytest.mark.parametrize(
    ("quota_type", "bound", "text"),
    [("Request", 12.3456789, "12.3456789 %"), ("ControllerMutation", 1234567.0, "1234567"),
     ("Produce", 1234567.0, "1,234,567 B"), ("Request", 1e-300, "1e-300 %")],
)  # fmt: skip
def test_a_limit_that_nobody_wrote_has_all_its_digits(quota_type, bound, text):
    """As one that is in force, where no file says how it is to be written."""
    row = outcome(client_id="c", bound=bound, quota_type=quota_type)
    assert limit_of_row(row, Plan(name="p", records=())) == text


def test_a_limit_that_changed_and_one_of_a_default_are_said():
    """Whose limit it is where the heading does not tell."""
    rows = [
        outcome("p", client_id="a", requests=1, bound=1e9, bound_of="default client-id"),
        outcome("q", client_id="a", requests=1, bound_changed=True),
    ]
    lines = _lines([_plan("p"), _plan("q")], rows, show_all=True)
    assert _cells(lines, "limit/s") == ["1", "GB", "changed"]
    assert _cells(lines, "limit of") == ["client", "default", "–"]


def test_a_forecast_that_depends_on_the_client_is_a_range():
    """Of one entity and of all together; the legend says what a range is."""
    ends = {
        "throttle_ms_low": 10_400, "throttle_ms_high": 25_200,
        "longest_throttle_ms_low": 1500, "longest_throttle_ms_high": 1500,
        "throttled_requests_low": 1, "throttled_requests_high": 9,
    }  # fmt: skip
    rows = [_throttled("p", client_id=name, throttle_ms=12_300, **ends) for name in "cd"]
    lines = _lines([_plan(is_closed=True)], rows)
    delays = [line.split()[-2:] for line in lines if line.startswith("  delay")]
    assert delays == [["21–50", "s"], ["10–25", "s"], ["10–25", "s"]]
    assert _cells(lines, "longest")[-2:] == ["1.5", "s"]
    assert lines[-2:] == [
        "a time such as 1–2 s is a range, because the record does not show how the",
        "client sends; see docs/closed-loop.md",
    ]


def test_ends_that_are_close_are_one_number():
    """The number itself, without a legend."""
    ends = {"throttle_ms_low": 12_000, "throttle_ms_high": 12_900, "throttled_requests_high": 250}
    lines = _lines([_plan(is_closed=True)], [_throttled("p", client_id="c", throttle_ms=12_300, **ends)])
    assert _cells(lines, "delay")[-2:] == ["12.3", "s"]
    assert "docs/closed-loop.md" not in lines


def test_a_client_that_only_the_upper_end_throttles_is_shown():
    """It is not said to be throttled never."""
    ends = {"throttle_ms_low": 0, "throttle_ms_high": 900, "throttled_requests_high": 3}
    lines = _lines([_plan(is_closed=True)], [outcome("p", client_id="c", requests=9, amount=9, **ends)])
    assert _cells(lines, "throttled") == ["never", "perhaps"]
    assert _cells(lines, "delay")[-2:] == ["0–900", "ms"]


def test_request_quotas_of_an_imported_record_cannot_be_judged():
    """Its request time is too low: `never` would be wrong. What was recorded stands beside it."""
    columns = {
        "quota_type": "Request",
        "requests": 100,
        "recorded_throttled_requests": 5,
        "approximate_imported": 100,
    }
    limited = outcome("p", client_id="a", bound=1.0, **columns)
    free = outcome("p", client_id="b", **columns)
    lines = _lines([_plan()], [limited, free], show_all=True)
    throttled = [line.split()[1:] for line in lines if line.startswith("  throttled ")]
    assert ["5.0%", "cannot", "be", "judged"] in throttled
    assert ["5.0%", "never"] in throttled
