"""The page at a signed link: the quotas of one client for people, without a script."""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from tidegate.server.monitoring.amounts import amount_text, used_text
from tidegate.server.monitoring.entity_order import would_be_throttled
from tidegate.server.monitoring.http_request import HttpError
from tidegate.server.monitoring.http_server import HttpResponse

__all__ = ["error_page", "explanation_page"]

_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)


def explanation_page(document: Mapping[str, Any], *, expires_s: int) -> HttpResponse:
    """Return the page of an explanation. expires_s: when the link ends, in s of Unix time."""
    names = f"user {_name(document['user'])}, client id {_name(document['client_id'])}"
    quotas = document["quotas"]
    throttled = [quota["quota_type"] for quota in quotas if quota["throttled_connections"]]
    state = (
        f'<span class="over">Throttled now: {", ".join(throttled)}.</span>'
        if throttled
        else "Not throttled now."
    )
    content = [
        f"<p>{names}</p>",
        f'<p role="status">{state} As of {_time(document["time_ms"])}. <a href="">Refresh</a></p>',
        *_processes(len(document.get("process_ports", ()))),
        *(line for quota in quotas for line in _section(quota, document["time_ms"])),
        '<p class="soft">While a connection is throttled, the broker does not read from it. No request is lost. To be '
        "throttled less, send or fetch less, or ask the operator of the broker for another quota. "
        f"This link ends at {_time(expires_s * 1000)}.</p>",
    ]
    return _response("Quotas of a client", "\n".join(content), status=200)


def error_page(error: HttpError) -> HttpResponse:
    """Return the page of an error."""
    content = f'<p class="over" role="alert">{escape(str(error))}</p>\n<p>{escape(error.hint or "")}</p>'
    return _response("No explanation", content, status=error.status)


def _processes(count: int) -> Iterator[str]:
    """Yield what the page leaves out if several processes serve the broker."""
    if count > 1:
        yield (
            f"<p>The page shows connections and rates as one of {count} processes of the gateway sees them. "
            "For all processes, run <code>tidegate explain --metrics 'LINK'</code> with the address of this page.</p>"
        )


def _section(quota: Mapping[str, Any], now_ms: int) -> Iterator[str]:
    unit, limit, kind = quota["unit"], quota["limit"], quota["quota_type"]
    yield f'<section aria-labelledby="{kind}"><h2 id="{kind}">{kind}</h2>'
    if quota["throttled_connections"]:
        left_s = max(0, quota["throttled_until_ms"] - now_ms) / 1000
        yield (
            f'<p class="over">Throttled connections: {quota["throttled_connections"]}, until '
            f"{_time(quota['throttled_until_ms'])}, in {left_s:.1f} s: {escape(quota['reason'])}</p>"
        )
    elif would_be_throttled(quota):
        yield (
            f"<p>Observed: a request now would be throttled for {quota['throttle_time_ms']:,} ms, but is not</p>"
        )
    elif quota["throttle_time_ms"]:
        yield f'<p class="over">Over the limit: a request now is throttled for {quota["throttle_time_ms"]:,} ms</p>'
    if limit is None:
        yield "<p>No limit applies.</p>"
    else:
        used = used_text(quota["utilization"])
        yield (
            f"<p>Rate {amount_text(quota['rate'], unit)}, limit {amount_text(limit, unit)}: {used} used</p>"
            f'<meter min="0" max="1" high="0.8" value="{min(quota["utilization"] or 0.0, 1.0):.3f}" '
            f'aria-label="{kind}: {used} of the limit">{used}</meter>'
        )
        yield f"<p>{_source(quota)}</p>"
    if any(level["limit"] is not None for level in quota["levels"]):
        yield "<details><summary>Why this limit applies, and no other</summary><table><thead><tr>"
        yield '<th scope="col">Quota of</th><th scope="col">Limit</th><th scope="col">Result</th></tr></thead><tbody>'
        for level in quota["levels"]:
            own = "none" if level["limit"] is None else amount_text(level["limit"], unit)
            yield (
                f'<tr><th scope="row">{_entity(level["entity"])}</th><td>{own}</td>'
                f"<td>{escape(level['reason'])}</td></tr>"
            )
        yield "</tbody></table></details>"
    yield "</section>"


def _source(quota: Mapping[str, Any]) -> str:
    """Return whose limit it is, and which clients share it."""
    of = "the quota callback" if quota["by_callback"] else _entity(quota["entity"])
    shared = ", ".join(
        f"{kind} {'that the quota callback chose' if name is None else _name(name)}"
        for kind, name in quota["shared_by"].items()
    )
    return f"Limit of {of}, shared by all clients with {shared or 'any name'}."


def _entity(entity: Mapping[str, str | None]) -> str:
    return ", ".join(
        f"{kind} {'&lt;default&gt;' if name is None else _name(name)}" for kind, name in entity.items()
    )


def _name(name: str) -> str:
    """Return a name of a client, which cannot change the order of the text around it."""
    return f"<bdi>{escape(name)}</bdi>" if name else "(empty)"


def _time(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _response(title: str, content: str, *, status: int) -> HttpResponse:
    template, policy = _template()
    html = template.substitute(title=title, content=content)
    return HttpResponse(
        content_type="text/html; charset=utf-8",
        body=[html.encode("utf-8", "backslashreplace")],
        status=status,
        headers={"Content-Security-Policy": policy, "Vary": "Accept"},
    )


@lru_cache(maxsize=1)
def _template() -> tuple[Template, str]:
    """Return the template, and the policy that allows its style and nothing else."""
    text = (files(__package__) / "link.html").read_text(encoding="utf-8")
    (style,) = _STYLE.findall(text)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return Template(text), policy
