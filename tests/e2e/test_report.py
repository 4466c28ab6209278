"""`tidegate report` in a real browser: what is there to read, on which screens, and whom it asks for anything."""

from pathlib import Path

from tests.e2e.browser import opened
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.cli.main import main
from tidegate.quota import QuotaRecord

_NARROW, _WIDE = 360, 1100  # CSS pixels
_CLIPPED = """[...document.querySelectorAll(".scroll")].filter(
    e => e.checkVisibility() && e.scrollWidth > e.clientWidth).length"""
_HOSTILE = "</script><img src=http://127.0.0.1:9/x onerror=alert(1)>\u202e" + "y" * 32_000
_PLAN = "version: 1\nquotas:\n  - client-id: {default: true}\n    producer_byte_rate: 1MB\n"
_COLOURS = """[document.body, document.querySelector(".chart svg text")].map(
    e => getComputedStyle(e)[e === document.body ? "backgroundColor" : "fill"])"""


def _report(directory: Path) -> Path:
    node = RecordingNode()
    names = ["loader", _HOSTILE, *(f"c{number}" for number in range(12))]
    records = [
        QuotaRecord(entity=(("client-id", name),), key="producer_byte_rate", value=500.0) for name in names
    ]
    node.start(START_MS, records=records)
    for second in range(310):  # enough for a proposal
        for place, name in enumerate(names):
            event = node.produce("alice", name, 600 * (20 - place), START_MS + 1000 * second)
            event |= {"topic": f"topic-{name}"[:249], "other_topics": place % 3}
    write_events(directory / "usage", node.events)
    (directory / "tight.yaml").write_text(_PLAN)
    page = directory / "report.html"
    plan = str(directory / "tight.yaml")
    assert main(["report", str(directory / "usage"), "--out", str(page), "--quotas", plan]) == 0
    return page


def test_a_browser_shows_it(tmp_path: Path) -> None:
    """All charts, without an error, a warning or a request; narrow, dark and printed too."""
    page = _report(tmp_path)
    with opened(page.as_uri(), tmp_path / "home") as browser:
        browser.wait_until("document.documentElement.dataset.charts === 'drawn'")
        charts = browser.run("document.querySelectorAll('.chart').length")
        assert charts >= 10
        assert browser.run("document.querySelectorAll('.chart > svg, .chart > * svg').length") == charts
        assert browser.run("document.querySelectorAll('details.more').length") >= 1
        first = browser.run("document.querySelector('main section').innerText")
        assert first.startswith("What to do")
        assert " entities were throttled. Longest total throttle times: " in first
        text = browser.run("document.body.innerText")
        assert "client-id=loader (produce)" in text
        assert "Produce and Fetch requests by topic, most bytes first." in text
        assert "Raise their quotas for a while, record again, and repeat the command." in text
        assert "loader" in browser.run("document.querySelector('.chart svg').textContent")
        colours = set()
        for scheme in ("light", "dark"):
            for width in (_NARROW, _WIDE):
                browser.look(width=width, scheme=scheme)
                assert browser.run("document.documentElement.scrollWidth <= window.innerWidth"), (
                    scheme,
                    width,
                )
                assert browser.run(_CLIPPED) == 0, (scheme, width)
            colours.add(tuple(browser.run(_COLOURS)))
        assert len(colours) == 2
        background, text = zip(*sorted(colours), strict=True)
        assert len({*background, *text}) == 4
        browser.run("document.querySelector('details:not([open]) summary').focus()")
        browser.press_enter()
        assert browser.run("document.activeElement.parentElement.querySelector('table').checkVisibility()")
        browser.look(width=_WIDE, scheme="dark", medium="print")
        assert browser.run(_COLOURS)[0] == "rgb(255, 255, 255)"
        assert browser.run("document.querySelectorAll('img, iframe, link[rel=stylesheet]').length") == 0
        assert browser.requests == [page.as_uri()]
        assert browser.complaints == []
