"""`tidegate gateway`: Kafka's quotas in front of the brokers of an existing Apache Kafka cluster."""

import argparse

from tidegate.cli.arguments import whole_number
from tidegate.cli.serve import add_process_options

__all__ = ["add_parser", "run"]

_MAX_PROCESSES = 32

_EPILOG = """\
examples:
  tidegate gateway --upstream kafka1:9092,kafka2:9092
                         broker 1 at 127.0.0.1:19093, broker 2 at 19094, ...
  tidegate gateway --upstream kafka1:9092 --override tidegate.quota.observe=all
                         record usage and throttles, and throttle no client
  tidegate gateway --upstream kafka1:9092 --listen 0.0.0.0:19092 \\
      --override advertised.listeners=PLAINTEXT://gateway1:19092 \\
      --override tidegate.allow.anonymous=true
  tidegate gateway --upstream kafka1:9092 --config gateway.properties
                         after a change of the file: kill -HUP PROCESS-ID
  tidegate gateway --upstream kafka1:9092 --quotas quotas.yaml
  tidegate gateway --upstream kafka1:9092 --brokers 1-16
  tidegate gateway --upstream kafka1:9092 --processes 4
  tidegate gateway --upstream kafka1:9092 --config gateway.properties \\
      --override listeners=SSL://0.0.0.0:9093 \\
      --override advertised.listeners=SSL://broker-{id}.k.example.com:9093
                         one port for all brokers; bootstrap servers of clients:
                         k.example.com:9093

Clients connect to the gateway instead of the brokers: broker N is at the port
of --listen plus N. With TLS, all brokers can share one port and have different
host names: put {id} in the advertised host. The gateway forwards requests as
they are, charges them to its own quotas as a Kafka broker does, and throttles
clients in the same way. Quotas that are stored in Kafka itself stay in force
there.

Set the gateway's quotas with any Kafka admin client that connects to the
gateway, or with `tidegate quotas apply`. They are kept in the topic
__tidegate_quotas of the cluster, which all gateway processes share. With
--quotas they come from a file instead, and no client can alter them.

With --processes, connections are spread over the processes at random, and the
processes share each broker's quotas. A process that ends is started again.

SIGHUP reads the files of --config and --quotas again. Quotas, connection
limits, certificates and settings such as tidegate.quota.observe change at once;
other settings take effect at the next start. Without --config and --quotas,
SIGHUP stops the gateway.

SASL logins pass through to the brokers, which check them. If a listener uses
SASL (PLAIN, as in `tidegate serve`), the gateway checks the logins instead, and
logs in at the brokers with the credentials of --upstream-config. TLS of clients
always ends at the gateway. `docs/gateway.md` describes all features and limits.

Ctrl-C stops the gateway at once."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command and its options to the command line."""
    parser = subparsers.add_parser(
        "gateway",
        help="throttle the clients of an existing Apache Kafka cluster",
        description="Throttle the clients of an Apache Kafka cluster, in front of its brokers.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--upstream", metavar="HOST:PORT[,...]", required=True, help="bootstrap addresses of the cluster"
    )
    parser.add_argument(
        "--upstream-config",
        metavar="FILE",
        help="settings of the gateway's own connections to the cluster, in the format of client.properties",
    )
    parser.add_argument(
        "--login",
        choices=("clients", "gateway"),
        help="clients: logins of clients pass through to the brokers; gateway: the gateway logs in for every client, "
        "with the credentials of --upstream-config (default: clients, unless a listener uses SASL)",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address of the gateway; broker N is at PORT + N (default: 127.0.0.1:19092)",
    )
    parser.add_argument(
        "--bootstrap-name",
        metavar="HOST[,...]",
        help="server names that lead to any broker, where a listener has one port for all brokers (default: the "
        "advertised host without the label that has {id})",
    )
    parser.add_argument(
        "--brokers",
        metavar="IDS",
        help="serve only these brokers, such as 1,3-5 (default: all of the cluster)",
    )
    parser.add_argument(
        "--processes",
        type=whole_number(1, _MAX_PROCESSES),
        default=1,
        metavar="N",
        help=f"number of processes that serve the same ports, 1 to {_MAX_PROCESSES}, for a broker with more "
        "traffic than one core can forward (default: 1)",
    )
    parser.add_argument(
        "--quotas",
        metavar="FILE",
        help="quotas of the gateway, in the format of quotas.yaml (default: the topic __tidegate_quotas)",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="read settings from FILE, in the format of server.properties"
    )
    parser.add_argument(
        "--override",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set one setting; repeatable; `tidegate serve --list-settings` lists them",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="directory for the usage record (default: ./tidegate-gateway)"
    )
    add_process_options(parser, runs="gateway")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the gateway until Ctrl-C or SIGTERM. Returns 0 after a clean stop."""
    from tidegate.server.short_collections import import_without_collections

    with import_without_collections():
        from tidegate.cli.gateway_process import run_gateway

    return run_gateway(args)
