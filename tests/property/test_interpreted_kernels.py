"""The kernels as Python, as small input is processed where nothing is compiled, against their machine code: equal."""

from random import Random

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.replaying.files import write_events
from tests.replaying.kernel import forecast_events, replay_events
from tests.replaying.logs import START_MS, random_records, random_traffic, random_window
from tests.replaying.node import RecordingNode

from tidegate.pipeline import warm_up
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.kernel.compiled import interpret, own_form
from tidegate.pipeline.replay.kernel.open_loop import replay_kernel
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.pipeline.rollup.kernel import usage_kernel
from tidegate.quota import QuotaRecord

_SOME = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_SMOOTH = QuotaRecord(entity=(), key="tidegate.quota.smooth", value=1.0)
_EVENTS = 300


def _node(rng):
    node = RecordingNode()
    window, controller_window = random_window(rng), random_window(rng)
    records = random_records(rng, at_most=8)
    node.start(START_MS, window=window, controller_window=controller_window, records=records)
    random_traffic(node, rng, events=_EVENTS, snapshots=True)
    return node


def _in_both_forms(function):
    """Return what a function returns with compiled kernels, and with Python's."""
    compiled = function()
    with own_form():
        interpret()
        assert not hasattr(replay_kernel(), "signatures")
        return compiled, function()


@_SOME
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_replays_are_equal(seed, is_smooth):
    """Decisions, tallies and sensors of the quotas in force, and of a plan with and without smooth mode."""
    rng = Random(seed)
    node = _node(rng)
    plan = Plan(name="p", records=(*random_records(rng, at_most=8), *[_SMOOTH] * is_smooth))
    for each in (in_force_plan(), plan):
        compiled, python = _in_both_forms(lambda each=each: replay_events(node.events, each))
        assert np.array_equal(compiled.decisions, python.decisions)
        assert repr(compiled.results) == repr(python.results)
        assert repr(compiled.sensors) == repr(python.sensors)


@_SOME
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_forecasts_are_equal(seed, is_smooth):
    """Also where clients are throttled, repeat fetches and are followed in three ways."""
    rng = Random(seed)
    node = _node(rng)
    records = (*random_records(rng, at_most=8), *[_SMOOTH] * is_smooth)
    plan = Plan(name="p", is_closed=True, records=records)
    compiled, python = _in_both_forms(lambda: forecast_events(node.events, plan))
    assert compiled.decisions == python.decisions
    assert repr(compiled.results) == repr(python.results)


@pytest.fixture
def uncompiled(monkeypatch):
    """Make all kernels seem not to be compiled; return the names that were to be compiled in the background."""
    later = []
    monkeypatch.setattr(warm_up, "_is_compiled", lambda kernel: False)
    monkeypatch.setattr(warm_up, "compile_later", later.extend)
    return later


def test_small_jobs_do_not_wait_for_a_compiler(tmp_path, uncompiled, monkeypatch):
    """Usage and a forecast of few rows call no compiled function, write equal tables, and have it compiled later."""
    node = _node(Random(1))
    write_events(tmp_path / "usage", node.events)
    plan = Plan(name="p", is_closed=True, records=random_records(Random(2), at_most=8))

    def written(name):
        out = tmp_path / name
        with open_usage(tmp_path / "usage") as files:
            jobs_here(files).usage(out=out / "usage", top=1)
            jobs_here(files).replay([plan], out=out / "replay")
        return {
            path.relative_to(out): pq.read_table(path) for path in sorted(out.glob("*/[!_]*/**/*.parquet"))
        }

    with monkeypatch.context() as kept:
        kept.setattr("numba.njit", None)  # calling it would raise
        python = written("python")
    assert uncompiled == [warm_up.USAGE, warm_up.CLOSED]
    monkeypatch.setattr(warm_up, "_is_compiled", lambda kernel: True)
    assert written("compiled") == python
    assert len(python) >= 4


def test_the_form_ends_with_the_job(tmp_path, uncompiled):
    """The next one chooses anew: it may be larger."""
    write_events(tmp_path, _node(Random(1)).events)
    with open_usage(tmp_path) as files:
        jobs_here(files).usage(out=None, top=1)
    assert uncompiled == [warm_up.USAGE]
    assert all(hasattr(each, "signatures") for each in usage_kernel())
