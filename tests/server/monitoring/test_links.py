"""Signed links: what they show, to whom, and every way to change one."""

import itertools
import json
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.monitoring.http_client import get
from tests.server.monitoring.test_metrics_listener import SECRET, serve, throttled_producer
from tests.server.nodes import RunningNode

from tidegate.quota import DEFAULT, QuotaEntity
from tidegate.server.monitoring.explanations import without_other_names
from tidegate.server.monitoring.links import LINK_FIELDS, MAX_LINK_S, is_signed, link_key, signed_fields
from tidegate.testing import ManualClock

KEY = link_key(SECRET)
DAY_S = 86_400
JSON = "application/json"
HOSTILE = '<img src=x onerror="alert(1)">\n"\\\u202e'


def link(node: RunningNode, client_id: str = "c1", *, valid_s: int = DAY_S, **changed: str) -> str:
    """Return a link that was signed now, with fields changed afterwards."""
    now_s = node.node.clock.wall_ms() // 1000
    fields = signed_fields(KEY, user="", client_id=client_id, expires_s=now_s + valid_s)
    return f"/explain?{urlencode({**fields, **changed})}"


def test_a_link_shows_one_client(tmp_path: Path) -> None:
    """As a page for people and as JSON, without the token; no other client is named."""

    async def scenario(node: RunningNode, port: int) -> None:
        await throttled_producer(node)
        produce, now_ms = node.node.managers.produce, node.node.clock.now_ms()
        produce.update_quota(QuotaEntity(client_id=DEFAULT), 10.0)
        produce.record("ANONYMOUS", "secret-other", 5000.0, now_ms)
        produce.update_quota(QuotaEntity(user="secret-user"), 10.0)
        for accept in ("", "text/html,*/*;q=0.8", f"text/html,{JSON}", "*/*"):
            got = await get(port, link(node), Accept=accept)
            assert (got.status, got.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert b"produce quota exceeded" in got.body
            assert b"100 B/s" in got.body
            assert b"secret" not in got.body
            assert b"<script" not in got.body
            assert got.headers["cache-control"] == "no-store"
            assert got.headers["referrer-policy"] == "no-referrer"
            assert "script-src" not in got.headers["content-security-policy"]
        got = await get(port, link(node), Accept=JSON)
        with_token = await get(port, "/explain?client-id=c1", Authorization=f"Bearer {SECRET}")
        assert json.loads(got.body) == json.loads(with_token.body)
        assert b"secret" not in got.body

    serve(tmp_path, scenario, token=SECRET)


def test_any_name_is_text_on_the_page(tmp_path: Path) -> None:
    """Markup, controls and changes of direction stay in the name."""

    async def scenario(node: RunningNode, port: int) -> None:
        for name in (HOSTILE, "$title ${content}", "ü" * 2000, "\u0000", "e\u0301"):
            got = await get(port, link(node, name))
            assert got.status == 200
            assert b"<img" not in got.body
            assert got.body.count(b"<bdi>") == got.body.count(b"</bdi>")

    serve(tmp_path, scenario, token=SECRET)


def test_a_changed_link_is_refused_with_one_answer(tmp_path: Path) -> None:
    """Another client, another time, a signature of another key, and fields that are missing, empty or odd."""

    async def scenario(node: RunningNode, port: int) -> None:
        now_s = node.node.clock.wall_ms() // 1000
        good = dict(field.split("=") for field in link(node).partition("?")[2].split("&"))
        other = signed_fields(link_key(SECRET[::-1]), user="", client_id="c1", expires_s=now_s + DAY_S)
        decomposed = signed_fields(KEY, user="", client_id="e\u0301", expires_s=now_s + DAY_S)
        refused = [
            link(node, user="alice"),
            link(node, user=""),
            link(node, **{"client-id": "c2"}),
            link(node, **{"client-id": "c1\0"}),
            link(node, **{"client-id": ""}),
            f"/explain?{urlencode({**decomposed, 'client-id': 'é'})}",
            link(node, expires=str(now_s + 2 * DAY_S)),
            link(node, expires="9" * 4000),
            link(node, expires=f"+{now_s + DAY_S}"),
            link(node, expires=f"0{now_s + DAY_S}"),
            link(node, expires=f"{now_s + DAY_S} "),
            link(node, expires="".join(chr(0x660 + int(digit)) for digit in str(now_s + DAY_S))),
            link(node, expires="-1"),
            link(node, signature=""),
            link(node, signature=good["signature"] + "="),
            link(node, signature=good["signature"][:-1]),
            link(node, signature=good["signature"].lower()),
            link(node, signature="x" * 10_000),
            link(node, signature="\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")),
            link(node, signature=other["signature"]),
            link(node, valid_s=0),
            link(node, valid_s=-1),
            link(node, valid_s=MAX_LINK_S + DAY_S),
            f"{link(node)}&more=1",
            *(
                f"/explain?{urlencode({name: text for name, text in good.items() if name != gone})}"
                for gone in LINK_FIELDS
            ),
        ]
        answers = set()
        for target in refused:
            got = await get(port, target, Accept=JSON)
            answers.add((got.status, got.body))
            page = await get(port, target)
            assert (page.status, page.headers["content-type"]) == (403, "text/html; charset=utf-8"), target
            assert b"the link is wrong or has expired" in page.body
        ((status, body),) = answers
        assert (status, json.loads(body)["error"]) == (403, "the link is wrong or has expired")
        assert "tidegate explain --link" in json.loads(body)["hint"]
        twice = await get(port, f"{link(node)}&user=alice", Accept=JSON)
        assert twice.status == 400, "a field that is there twice"

    serve(tmp_path, scenario, token=SECRET)


def test_order_and_encoding_of_fields_do_not_matter(tmp_path: Path) -> None:
    """What is signed are names, not bytes of a URL: each spelling is of the same client."""

    async def scenario(node: RunningNode, port: int) -> None:
        fields = link(node, "a b").partition("?")[2].split("&")
        bodies = set()
        for order in itertools.islice(itertools.permutations(fields), 6):
            bodies.add((await get(port, f"/explain?{'&'.join(order)}", Accept=JSON)).body)
        escaped = [
            f"{field.partition('=')[0]}={quote(field.partition('=')[2], safe='%+')}" for field in fields
        ]
        spelled = "&".join(escaped).replace("a+b", "%61%20%62").replace("user", "%75ser")
        bodies.add((await get(port, f"/%65xplain?{spelled}", Accept=JSON)).body)
        assert len(bodies) == 1

    serve(tmp_path, scenario, token=SECRET)


def test_no_other_path_accepts_a_link(tmp_path: Path) -> None:
    """Neither as a query nor as a bearer token; a link does not lend its right to a second client."""

    async def scenario(node: RunningNode, port: int) -> None:
        query = link(node).partition("?")[2]
        signature = query.rpartition("=")[2]
        for path in ("/metrics", "/entities", "/nothing", "/explain/", "//explain"):
            assert (await get(port, f"{path}?{query}")).status == 401
        for path in ("/metrics", "/entities", "/explain?client-id=c1"):
            assert (await get(port, path, Authorization=f"Bearer {signature}")).status == 401

    serve(tmp_path, scenario, token=SECRET)


def test_a_listener_without_a_token_has_no_links(tmp_path: Path) -> None:
    """There is no key, so none is genuine."""

    async def scenario(node: RunningNode, port: int) -> None:
        assert (await get(port, link(node))).status == 403

    serve(tmp_path, scenario)


def test_a_clock_that_is_set_back_makes_no_link_valid_again(tmp_path: Path) -> None:
    """The later of the wall clock and the engine's clock decides."""

    async def scenario(node: RunningNode, port: int) -> None:
        clock = node.node.clock
        assert isinstance(clock, ManualClock)
        target = link(node, valid_s=60)
        assert (await get(port, target)).status == 200
        clock.advance(61_000)
        assert (await get(port, target)).status == 403
        clock.step_wall(-3_600_000)
        assert (await get(port, target)).status == 403

    serve(tmp_path, scenario, token=SECRET)


def test_a_name_that_a_callback_chose_is_hidden() -> None:
    """Only the client's own names are left of those that its usage is counted by."""
    quota = {"shared_by": {"user": "alice", "client-id": "tenant of bob"}}
    shown = without_other_names({"user": "alice", "client_id": "c1", "quotas": [quota]})
    assert shown["quotas"] == [{"shared_by": {"user": "alice", "client-id": None}}]
    assert quota["shared_by"]["client-id"] == "tenant of bob", "the document itself stays"


NAMES = st.text(st.characters(), max_size=12)


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_a_signature_is_of_one_pair_of_names(first: tuple[str, str], second: tuple[str, str]) -> None:
    """Whatever the names contain: no other division of the same text has the same signature."""
    fields = signed_fields(KEY, user=first[0], client_id=first[1], expires_s=100)
    assert is_signed(KEY, fields, now_s=99)
    changed = {**fields, "user": second[0], "client-id": second[1]}
    is_same = (fields["user"], fields["client-id"]) == second
    assert is_signed(KEY, changed, now_s=99) is is_same


@pytest.mark.parametrize("token", [SECRET + "x", SECRET[1:]])
def test_a_new_token_ends_all_links(token: str) -> None:
    """The key comes from the token."""
    fields = signed_fields(KEY, user="alice", client_id="", expires_s=100)
    assert is_signed(KEY, fields, now_s=1)
    assert not is_signed(link_key(token), fields, now_s=1)
