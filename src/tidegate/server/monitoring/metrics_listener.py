"""The metrics listener of a node: what each path of its HTTP server returns, and to which clients.

| path | returns |
|---|---|
| `/` | a page that shows the entities in a browser; it holds no data itself |
| `/metrics` | metrics for Prometheus |
| `/entities` | the live quota entities as JSON |
| `/explain?user=U&client-id=C` | the quotas of one client as JSON |
| `/explain?user=U&client-id=C&expires=S&signature=T` | the same as a page or JSON, for a reader without the token |

One response is made at a time, about a millisecond in each turn of the event loop, however many clients ask.
"""

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import re
from functools import lru_cache
from importlib.resources import files
from typing import Any

from tidegate import __version__
from tidegate.fair_share import ANONYMOUS
from tidegate.quota import CallbackError
from tidegate.server.listening.listener_config import ListenerAddress, host_and_port
from tidegate.server.monitoring.entities import (
    ONLY_PROCESS,
    OTHERS,
    Pace,
    ProcessPorts,
    entities_document,
    find_entities,
    find_throttled,
)
from tidegate.server.monitoring.explanations import explanation_document, without_other_names
from tidegate.server.monitoring.http_request import HttpError, HttpRequest
from tidegate.server.monitoring.http_server import HttpResponse, HttpServer
from tidegate.server.monitoring.link_page import error_page, explanation_page
from tidegate.server.monitoring.links import LINK_PATH, is_link, is_signed, link_key
from tidegate.server.monitoring.prometheus_text import CONTENT_TYPE, Families
from tidegate.server.node import Node
from tidegate.server.settings.metrics_settings import (
    METRICS_NAME,
    METRICS_TOKEN_FILE,
    MetricsConfig,
    read_token,
)

__all__ = ["MetricsListener"]

_JSON = "application/json"
_NEW_LINK = "ask the operator of the broker for a new one: tidegate explain --link"
_PATHS = "paths are /, /metrics, /entities and /explain"
_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)
_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:]*))(?::[0-9]*)?")


class MetricsListener:
    """The metrics of one node over HTTP. processes: the listeners of all processes that serve the broker."""

    def __init__(self, node: Node, token: str | None, processes: ProcessPorts = ONLY_PROCESS) -> None:
        self._node = node
        self._processes = processes
        self._token = None if token is None else token.encode()
        self._link_key: bytes | None = None
        self._deriving = asyncio.Lock()
        self._one_at_a_time = asyncio.Lock()
        self._server: HttpServer | None = None
        self._host, self._is_https = "", False

    @classmethod
    def start(
        cls, node: Node, config: MetricsConfig, processes: ProcessPorts = ONLY_PROCESS
    ) -> "MetricsListener":
        """Begin to serve. Raises `ConfigError` where the address or the token cannot be used."""
        token = None if config.token_file is None else read_token(config.token_file)
        listener = cls(node, token, processes)
        listener._host, listener._is_https = config.host, config.is_https
        listener._server = HttpServer.start(
            listener.respond,
            ListenerAddress(name=METRICS_NAME, host=config.host, port=config.port),
            network=node.network,
            config=node.config,
            tls=lambda: node.tls.of(METRICS_NAME),
            buffers=node.tls_buffers,
        )
        return listener

    @property
    def url(self) -> str:
        """The address of the page."""
        assert self._server is not None
        return f"http{'s' * self._is_https}://{host_and_port(self._host, self._server.port)}/"

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.close()

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """Return the response to a request. Raises `HttpError`."""
        self._check_host(request)
        if request.path == "/":
            return _page()
        if request.path == LINK_PATH and is_link(request.query):
            return await self._linked(request)
        self._check_token(request)
        async with self._one_at_a_time:
            pace = Pace(self._node.clock.monotonic_ns)
            if request.path == "/metrics":
                return HttpResponse(content_type=CONTENT_TYPE, body=await self._metrics(pace))
            if request.path == "/entities":
                document = await entities_document(self._node, pace, self._processes)
                return HttpResponse(content_type=_JSON, body=document)
            if request.path == LINK_PATH:
                return _json(await self._explanation(request, pace))
        raise HttpError(404, f"path {request.path[:40]!r} does not exist", hint=_PATHS)

    def _check_host(self, request: HttpRequest) -> None:
        """Refuse host names: a foreign page may point one at this machine (DNS rebinding).

        A token protects from that, and so does a certificate: a browser compares it with the name.
        """
        host = request.headers.get("host", "")
        if self._token is None and not self._is_https and host and not _is_local_name(host):
            raise HttpError(
                403,
                f"host {host[:40]!r} is not an address of this listener",
                hint=f"use 127.0.0.1 or localhost in the URL, or set {METRICS_TOKEN_FILE}",
            )

    def _check_token(self, request: HttpRequest) -> None:
        if self._token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_given = scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode("latin-1"), self._token
        )
        if not is_given:
            raise HttpError(
                401,
                "the bearer token is missing or wrong",
                hint=f"send the token of {METRICS_TOKEN_FILE}: --token-file of tidegate top and tidegate explain, "
                "authorization.credentials_file of Prometheus",
            )

    async def _linked(self, request: HttpRequest) -> HttpResponse:
        """Return what a signed link shows, as a page or as JSON. Raises `HttpError`."""
        accepted = request.headers.get("accept", "")
        as_page = _JSON not in accepted or "text/html" in accepted
        clock, query = self._node.clock, request.query
        # Of two clocks the later: a wall clock that is set back makes no link valid again.
        now_s = max(clock.now_ms(), clock.wall_ms()) // 1000
        key = await self._key_of_links()
        if key is None or not is_signed(key, query, now_s=now_s):
            refusal = HttpError(403, "the link is wrong or has expired", hint=_NEW_LINK)
            if as_page:
                return error_page(refusal)
            raise refusal
        async with self._one_at_a_time:
            pace = Pace(clock.monotonic_ns)
            try:
                document = await explanation_document(
                    self._node, query["user"], query["client-id"], pace, self._processes
                )
            except CallbackError as error:
                raise HttpError(500, "the quota callback failed") from error
        shown = without_other_names(document)
        return explanation_page(shown, expires_s=int(query["expires"])) if as_page else _json(shown)

    async def _key_of_links(self) -> bytes | None:
        """Return the key of links, None without a token; derived in a thread when the first link is opened."""
        async with self._deriving:
            if self._link_key is None and self._token is not None:
                self._link_key = await asyncio.to_thread(link_key, self._token.decode())
        return self._link_key

    async def _explanation(self, request: HttpRequest, pace: Pace) -> dict[str, Any]:
        query = request.query
        unknown = query.keys() - {"user", "client-id"}
        if unknown or not query:
            raise HttpError(
                400,
                f"unknown field {min(unknown)[:40]!r} of the query" if unknown else "the query is empty",
                hint="ask for /explain?user=U&client-id=C",
            )
        user = query.get("user") or ANONYMOUS
        try:
            client_id = query.get("client-id", "")
            return await explanation_document(self._node, user, client_id, pace, self._processes)
        except CallbackError as error:
            raise HttpError(500, f"the quota callback failed: {error}") from error

    async def _metrics(self, pace: Pace) -> list[bytes]:
        """Return all metrics; of clients, those of the entities that use most of their quota."""
        now_ms = self._node.clock.now_ms()
        families = Families()
        about = {"version": __version__, "node_id": str(self._node.config["node.id"])}
        families.add("tidegate_build_info", 1.0, about, help_text="Version and node id")
        for name, value, help_text in self._node.gauges():
            families.add(name, value, {}, help_text=help_text)
        throttled = await find_throttled(self._node, pace)
        for entities in await find_entities(self._node, throttled, now_ms, pace):
            manager, quota_type = entities.manager, entities.manager.quota_type
            of_type = {"quota_type": quota_type.value}
            families.add(
                "tidegate_quota_entities", entities.count, of_type, help_text="Quota entities with a sensor"
            )
            families.add(
                "tidegate_quota_entities_omitted",
                entities.omitted,
                of_type,
                help_text=f"Quota entities without lines of their own; the sum of their rates has user={OTHERS}",
            )
            for sensor in entities:
                for metric in manager.metrics_of(sensor, now_ms):
                    families.add_metric(metric)
                used = sensor.utilization(now_ms)
                if used is not None:
                    labels = {**of_type, **sensor.tags}
                    families.add("tidegate_quota_limit", sensor.bound, labels, help_text="Quota, per second")
                    families.add(
                        "tidegate_quota_utilization_ratio",
                        used,
                        labels,
                        help_text="Share of the quota that is used; clients are throttled above 1",
                    )
                await pace.rest()
            if entities.omitted:
                families.add_metric(entities.omitted_metric())
        async for part in self._node.metrics_in_slices(now_ms, with_clients=False):
            for metric in part:
                families.add_metric(metric)
                await pace.rest()
        body = []
        for line in families.lines():
            body.append(line.encode("utf-8", "backslashreplace"))
            await pace.rest()
        return body


def _json(document: dict[str, Any]) -> HttpResponse:
    body = [json.dumps(document).encode() + b"\n"]
    return HttpResponse(content_type=_JSON, body=body, headers={"Vary": "Accept"})


@lru_cache(maxsize=1)
def _page() -> HttpResponse:
    """Return the page, with a policy that lets it run its own script and ask its own listener, and nothing else."""
    html = (files(__package__) / "page.html").read_text(encoding="utf-8")
    hashes = {
        kind: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for kind, text in _INLINE.findall(html)
    }
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return HttpResponse(
        content_type="text/html; charset=utf-8",
        body=[html.encode()],
        headers={"Content-Security-Policy": policy},
    )


def _is_local_name(host: str) -> bool:
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1] or match[2] or ""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name.lower() == "localhost"
    return True
