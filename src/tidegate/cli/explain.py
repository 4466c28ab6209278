"""`tidegate explain`: which quotas apply to a client, why, and, from a metrics listener, whether it is throttled."""

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tidegate.cli.arguments import printable
from tidegate.cli.client_options import add_client_options, run_admin
from tidegate.cli.job_options import duration_type
from tidegate.cli.metrics_client import (
    MetricsClient,
    add_metrics_options,
    clock_text,
    link_fields,
)
from tidegate.cli.metrics_options import add_prometheus_options, check_prometheus, latest_from
from tidegate.cli.metrics_processes import processes_text, whole_document
from tidegate.errors import ConfigError
from tidegate.pipeline.report.text import things_text
from tidegate.server.monitoring.amounts import amount_text, used_text
from tidegate.server.monitoring.entity_order import would_be_throttled
from tidegate.server.monitoring.http_request import MAX_TARGET_BYTES
from tidegate.server.monitoring.links import LINK_PATH, MAX_LINK_S, link_key, signed_fields

if TYPE_CHECKING:
    from tidegate.pipeline.prometheus.measured import Uses
    from tidegate.quota.managers.explain import Explanation

__all__ = ["add_parser", "explanation_lines", "run"]

_LINK_S = 24 * 3600

_DESCRIPTION = """\
Show which quotas apply to a client. For each quota type: the entity whose limit
applies, and why the other seven levels do not apply. The metrics listener of a
Tidegate broker also provides the current rate and the remaining throttle time.
With --bootstrap-server, explain the quotas of any cluster, Apache Kafka
included; --prometheus adds rate and throttle time on each broker, from Kafka's
own metrics."""

_EPILOG = """\
examples:
  tidegate explain --client-id billing         a client that does not log in
  tidegate explain --user alice --client-id billing
  tidegate explain --user alice --json --metrics http://10.0.0.5:9404 \\
      --token-file token
  tidegate explain --user alice --metrics https://broker1:9404 \\
      --command-config client.properties       its trust store and certificate

  tidegate explain --user alice --client-id billing --link --expires 24h \\
      --metrics http://10.0.0.5:9404 --token-file token
                                               a link for the client's developer
  tidegate explain --metrics 'LINK'            what a link shows

  tidegate explain --user alice --client-id billing \\
      --bootstrap-server kafka1:9092           quotas of an Apache Kafka
  tidegate explain --user alice --client-id billing \\
      --bootstrap-server kafka1:9092 --prometheus http://prometheus:9090
  tidegate explain --user alice --metrics http://gateway1:9405 \\
      --bootstrap-server kafka1:9092     quotas of a gateway, and of its Kafka

Without --bootstrap-server the broker needs a metrics listener:
  tidegate serve --override tidegate.metrics.listener=127.0.0.1:9404

Without --user, the user is ANONYMOUS, the user of clients that do not log in.
The command has no effect on the broker's decisions.

exit codes:
  0    done
  2    an option cannot be used, or the listener cannot be reached; the reason
       is on stderr
  130  interrupted with Ctrl-C"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "explain",
        help="show which quotas apply to a client, and why",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_metrics_options(parser, with_links=True)
    add_client_options(parser)
    add_prometheus_options(
        parser, what="with --bootstrap-server: rate and throttle time now, from Kafka's metrics of clients"
    )
    parser.add_argument("--user", metavar="U", help="user of the client (default: ANONYMOUS)")
    parser.add_argument("--client-id", metavar="C", help="client id (default: empty)")
    parser.add_argument(
        "--link",
        action="store_true",
        help="print a link that shows this explanation and nothing else, without the token, until it expires",
    )
    parser.add_argument(
        "--expires",
        dest="expires_ms",
        metavar="TIME",
        type=duration_type,
        help="how long the link is valid, such as 90s, 15m, 6h or 2d, at most 30d (default: 24h)",
    )


def run(args: argparse.Namespace) -> int:
    """Ask the broker and print its answer. Raises `TidegateError`."""
    names = {"user": args.user, "client_id": args.client_id}
    given = {name: _checked_name(name, text) for name, text in names.items() if text is not None}
    linked = link_fields(args.metrics or "")
    if linked and (given or args.link or args.token_file or args.bootstrap_server):
        raise ConfigError(
            "a link names its client and needs no other option",
            hint="give --metrics LINK alone; with https:// also --command-config",
        )
    if not given and not linked:
        raise ConfigError("no client is named, expected --user, --client-id or both")
    if args.expires_ms is not None and not args.link:
        raise ConfigError("--expires needs --link")
    check_prometheus(args)
    is_of_cluster = args.bootstrap_server is not None or (
        args.metrics is None and args.command_config is not None
    )
    if args.prometheus and not is_of_cluster:
        raise ConfigError(
            "--prometheus needs --bootstrap-server",
            hint="add --bootstrap-server HOST:PORT of the cluster; for a Tidegate broker, give only --metrics",
        )
    if args.link:
        if is_of_cluster:
            raise ConfigError("--link is for a metrics listener", hint="leave out --bootstrap-server")
        print(_link(args))
        return 0
    documents = []
    if not is_of_cluster or args.metrics is not None:
        documents.append(whole_document(MetricsClient.of(args), LINK_PATH, **(given or linked)))
    if is_of_cluster:
        documents.append(_explained_definitions(args))
    if args.json:
        # For a gateway, the document also contains the quotas of its cluster.
        document = documents[0] if len(documents) == 1 else {**documents[0], "cluster": documents[1]}
        print(json.dumps(document, indent=2))
    else:
        print("\n\n".join("\n".join(explanation_lines(document)) for document in documents))
    return 0


def _checked_name(option: str, text: str) -> str:
    """Return a name. Raises `ConfigError` if it is not UTF-8, because no client can have such a name."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"--{option.replace('_', '-')} is {text!r}, expected UTF-8") from error
    return text


def _link(args: argparse.Namespace) -> str:
    """Return a link to the explanation of the client, once the listener has accepted it. Raises `TidegateError`."""
    from tidegate.server.settings.metrics_settings import read_token

    if args.token_file is None:
        raise ConfigError(
            "--link needs --token-file: the link is signed with the listener's token",
            hint="a listener without a token has no links; set tidegate.metrics.token.file of the broker",
        )
    valid_s = _LINK_S if args.expires_ms is None else args.expires_ms // 1000
    if not 0 < valid_s <= MAX_LINK_S:
        raise ConfigError("--expires must be from 1s to 30d")
    fields = signed_fields(
        link_key(read_token(args.token_file)),
        user=args.user or "",
        client_id=args.client_id or "",
        expires_s=int(time.time()) + valid_s,
    )
    target = f"{LINK_PATH}?{urlencode(fields)}"
    if len(target) > MAX_TARGET_BYTES:
        raise ConfigError(f"the link has {len(target)} bytes, expected at most {MAX_TARGET_BYTES}")
    client = MetricsClient.of(args)
    client.get(LINK_PATH, user=fields["user"])
    replace(client, token_file=None).get(LINK_PATH, **fields)
    return f"{client.url}{target}"


def _explained_definitions(args: argparse.Namespace) -> dict[str, Any]:
    """Return the explanation of a cluster's stored quotas by Kafka's own rules, without any quota callback."""
    from tidegate.fair_share import ANONYMOUS
    from tidegate.quota import QuotaRecord
    from tidegate.quota.managers.quota_managers import QuotaManagers
    from tidegate.server.monitoring.explanations import definition_fields

    managers = QuotaManagers()
    for entity, values in run_admin(args, lambda admin: admin.describe_client_quotas()):
        for key, value in values.items():
            managers.apply(QuotaRecord(entity=entity, key=key, value=value))
    user, client_id = args.user or ANONYMOUS, args.client_id or ""
    explanations = [manager.explain(user, client_id) for manager in managers]
    quotas = [definition_fields(explanation) for explanation in explanations]
    if args.prometheus:
        uses = latest_from(args)
        for explanation, quota in zip(explanations, quotas, strict=True):
            quota["brokers"] = _broker_fields(explanation, quota["limit"], uses)
    return {"format": 1, "node_id": None, "user": user, "client_id": client_id, "quotas": quotas}


def _broker_fields(explanation: "Explanation", limit: float | None, uses: "Uses") -> list[dict[str, Any]]:
    """Return rate, utilization and mean throttle time of a client's quota entity, by broker."""
    from tidegate.quota import name_of_tag

    user, client_id = explanation.tags.get("user") or None, explanation.tags.get("client-id") or None
    entity = explanation.quota_type, None if user is None else name_of_tag(user), client_id
    return [
        {
            "broker": broker,
            "rate": use.rate,
            "utilization": None if use.rate is None or not limit else use.rate / limit,
            "mean_throttle_time_ms": use.throttle_ms,
        }
        for broker, use in sorted(uses.get(entity, {}).items())
    ]


def explanation_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield an explanation as text."""
    user, client_id = document["user"], document["client_id"]
    place = "quotas of the cluster" if document["node_id"] is None else f"node {document['node_id']}"
    yield f"user={printable(repr(user))}, client-id={printable(repr(client_id))}, {place}{processes_text(document)}"
    for quota in document["quotas"]:
        yield ""
        yield from _quota_lines(quota, document.get("time_ms", 0))


def _quota_lines(quota: Mapping[str, Any], now_ms: int) -> Iterator[str]:
    unit = quota["unit"]
    limit = "no limit" if quota["limit"] is None else f"limit {amount_text(quota['limit'], unit)}"
    if quota["limit"] is None:
        source = ""
    elif quota["by_callback"]:
        source = " from the quota callback"
    else:
        source = f" of {_entity_text(quota['entity'])}"
    yield f"{quota['quota_type']} ({quota['quota_key']}): {limit}{source}"
    if quota["limit"] is not None:
        shared = ", ".join(f"{kind}={_shared_name(name)}" for kind, name in quota["shared_by"].items())
        yield f"  shared by all clients with {shared or 'any name'}"
    if "rate" in quota:
        yield from _use_lines(quota, unit, now_ms)
    if "brokers" in quota:
        yield from _broker_lines(quota, unit)
    if quota["levels"] and all(level["limit"] is None for level in quota["levels"]):
        yield "    no quota is defined at any of the eight levels"
        return
    for level in quota["levels"]:
        own = "" if level["limit"] is None else f"{amount_text(level['limit'], unit)}, "
        mark = "*" if level["applies"] else " "
        yield f"  {mark} {_entity_text(level['entity'])}: {own}{level['reason']}"


def _use_lines(quota: Mapping[str, Any], unit: str, now_ms: int) -> Iterator[str]:
    """Yield the rate now and, if the client is throttled, how long its connections stay muted."""
    if quota["limit"] is not None:
        place, limit = "", "the limit"
        if quota.get("scope") == "cluster" and quota["quota_type"] == "ControllerMutation":
            place, limit = " through this gateway", "the limit of all gateways"
        elif quota.get("scope") == "cluster":
            place = " over all brokers"
        yield f"  rate {amount_text(quota['rate'], unit)}{place}, {used_text(quota['utilization'])} of {limit}"
    if quota["throttled_connections"]:
        until = clock_text(quota["throttled_until_ms"])
        left_s = max(0, quota["throttled_until_ms"] - now_ms) / 1000
        connections = things_text(quota["throttled_connections"], "connection")
        yield f"  throttled: {connections} for another {left_s:.1f} s, until {until}, {quota['reason']}"
    elif would_be_throttled(quota):
        yield f"  observed: a request now would be throttled for at least {quota['throttle_time_ms']:,} ms, but is not"
    elif quota["throttle_time_ms"]:
        yield f"  over the limit: a request now is throttled for at least {quota['throttle_time_ms']:,} ms"
    else:
        yield "  observed: not throttled" if quota.get("observed") else "  not throttled"


def _broker_lines(quota: Mapping[str, Any], unit: str) -> Iterator[str]:
    """Yield the usage on each broker, as of the last scrape."""
    for broker in quota["brokers"]:
        used = "" if broker["utilization"] is None else f", {used_text(broker['utilization'])} of the limit"
        mean_ms = broker["mean_throttle_time_ms"]
        throttled = "not throttled" if not mean_ms else f"throttled by {mean_ms:,.0f} ms on average"
        name = printable(broker["broker"]) or "broker"
        yield f"  {name}: rate {amount_text(broker['rate'], unit)}{used}, {throttled}"
    if not quota["brokers"] and quota["limit"] is not None:
        yield "  no broker has metrics of this quota: no recent request, or the metrics are not exported"


def _shared_name(name: str | None) -> str:
    """Return a name that usage is counted by. None: a link does not show names that a quota callback chose."""
    return "<chosen by the quota callback>" if name is None else printable(repr(name))


def _entity_text(entity: Mapping[str, str | None]) -> str:
    parts = (
        f"{kind}={'<default>' if name is None else printable(repr(name))}" for kind, name in entity.items()
    )
    return ", ".join(parts)
