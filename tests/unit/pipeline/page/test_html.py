"""The page: nothing from outside is more than text in it, it loads nothing, and its file is private."""

import hashlib
import json
import os
import re
import stat
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.page import html
from tidegate.pipeline.page.html import Chart, Section, check_page, report_html, write_page
from tidegate.pipeline.report.tables import Column, Table

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "\u202eevil",
    '"><img src=x onerror=alert(1)>',
    "&lt;b&gt;",
]
_BUNDLE_BYTES = 1_000_000


class _Elements(HTMLParser):
    """All elements of a page, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        (
            self.scripts
            if self.elements and self.elements[-1][0] == "script" and self._in(data)
            else self.texts
        ).append(data)

    def _in(self, data):
        return self.cdata_elem == "script"


def _page(name="a"):
    names = [Column(name, "key", is_name=True), Column(name, "key", is_name=True)]
    table = Table(caption=name, columns=[*names, Column("n", "key")], rows=[{"key": name}])
    chart = Chart(title=name, description=name, spec={"data": {"values": [{"text": name}]}}, table=table)
    section = Section(anchor="one", title=name, sentences=[name], charts=[chart], tables=[table])
    return report_html(title=name, facts=[(name, name)], sections=[section], made_by=name)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_add_no_element(name):
    """However it is spelt, a name is text: the elements are those of a page with a harmless one."""
    plain, hostile = _Elements(_page()), _Elements(_page(name))
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert [sorted(attributes) for _, attributes in hostile.elements] == [
        sorted(attributes) for _, attributes in plain.elements
    ]
    assert name in hostile.texts


@pytest.mark.parametrize("name", HOSTILE)
def test_names_come_whole_to_the_charts(name):
    """What stands in the data of the charts is the name again, and ends no script."""
    [specs, _, _] = _Elements(_page(name)).scripts
    assert json.loads(specs)[0]["data"]["values"] == [{"text": name}]
    assert not set("<>&\u2028\u2029") & set(specs)


def test_the_policy_allows_what_is_in_it_alone():
    """Each script and style by its hash; no network, no forms, no eval."""
    page = _page()
    policy = dict(
        _Elements(page).elements
        and [
            (attributes["http-equiv"], attributes["content"])
            for tag, attributes in _Elements(page).elements
            if "http-equiv" in attributes
        ]
    )["Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.keys() == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    assert (rules["default-src"], rules["base-uri"], rules["form-action"]) == ("'none'",) * 3
    assert rules["img-src"] == "data:"
    for sources in (rules["script-src"], rules["style-src"]):
        assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='( 'sha256-[A-Za-z0-9+/]{43}=')*", sources)


def test_it_has_landmarks_and_a_table_behind_each_chart():
    """Header, navigation, main and footer once; a chart is an image with a text, and its table is below it."""
    elements = _Elements(_page()).elements
    tags = [tag for tag, _ in elements]
    assert {tag: tags.count(tag) for tag in ("header", "nav", "main", "footer", "h1")} == dict.fromkeys(
        ("header", "nav", "main", "footer", "h1"), 1
    )
    [chart] = [attributes for _, attributes in elements if attributes.get("role") == "img"]
    assert chart["aria-label"] == "a. a"
    assert tags.index("details") < tags.index("table")
    assert {attributes.get("scope") for tag, attributes in elements if tag == "th"} == {"col", "row"}


def test_numbers_that_json_does_not_have_are_our_mistake():
    """They would end the script of a page without a word."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        html._script_json(float("nan"))


def test_the_bundle_is_small_and_has_its_licences():
    """At most 1 MB, nothing in it ends a script element, and the notices of what is in it stand at its head."""
    bundle = files("tidegate.pipeline.page").joinpath("vega.js").read_bytes()
    assert len(bundle) <= _BUNDLE_BYTES
    assert not re.search(rb"</script|<!--", bundle, re.IGNORECASE)
    notices = bundle[: bundle.index(b"*/")].decode()
    for holder in (
        "University of Washington Interactive Data Lab",
        "Mike Bostock",
        "Cynthia Brewer",
        "jQuery Foundation",
    ):
        assert holder in notices
    assert hashlib.sha256(bundle).hexdigest() == html.BUNDLE_SHA256


def test_a_page_is_for_its_owner_alone(tmp_path):
    """Whatever the umask, and nothing is left beside it."""
    before = os.umask(0)
    try:
        write_page(tmp_path / "r.html", "x\ud800\n", overwrite=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "r.html").stat().st_mode) == 0o600
    assert (tmp_path / "r.html").read_bytes() == b"x?\n"
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_nothing_is_replaced_unasked(tmp_path):
    """Not even a link that leads nowhere."""
    (tmp_path / "r.html").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("r.html", "link"):
        with pytest.raises(OutputError, match="already exists"):
            write_page(tmp_path / name, "x", overwrite=False)
    assert (tmp_path / "r.html").read_text() == "mine"
    write_page(tmp_path / "r.html", "x", overwrite=True)
    assert (tmp_path / "r.html").read_text() == "x"


def test_what_cannot_be_written_is_said_before(tmp_path):
    """A directory, or one that is not there."""
    with pytest.raises(OutputError, match="is a directory"):
        check_page(tmp_path, overwrite=True)
    with pytest.raises(OutputError, match="does not exist"):
        check_page(tmp_path / "no" / "r.html", overwrite=True)
