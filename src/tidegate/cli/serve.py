"""`tidegate serve`: a Kafka-protocol broker with an embedded log that throttles its clients as Kafka does."""

import argparse

__all__ = ["add_parser", "run"]

_EPILOG = """\
examples:
  tidegate serve                     on 127.0.0.1:9092, data in ./tidegate-data
  tidegate serve --port 9192 --data /var/lib/tidegate
  tidegate serve --config server.properties --override quota.window.num=21
  tidegate serve --override listeners=IN://127.0.0.1:9092,OUT://0.0.0.0:9093 \\
      --override listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT \\
      --override tidegate.allow.anonymous=true \\
      --override listener.name.out.max.connections=1000
  tidegate serve --nodes 3           three brokers, on ports 9092, 9093 and 9094

settings have Kafka's names (listeners, log.dirs, num.partitions,
quota.window.num, ...); an option here wins over --override, which wins over the
file. `--list-settings` prints all of them.

Set quotas with any Kafka admin client, for example:
  kafka-configs.sh --bootstrap-server 127.0.0.1:9092 --alter \\
      --add-config producer_byte_rate=1048576 \\
      --entity-type clients --entity-name loader

--nodes is for trying what quotas mean on a cluster: several brokers in one
process on one machine, over one data directory, with nothing replicated.
Partitions are spread over them, each counts and throttles its own clients, so
that three nodes admit three times the bytes; the first is the controller, which
counts the changes of topics for all.

Ctrl-C stops it at once; what was acknowledged is on disk."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command and its options to the command line."""
    parser = subparsers.add_parser(
        "serve",
        help="a broker for any Kafka client, with Kafka's quotas",
        description="Serve the Kafka protocol with an embedded log; quotas throttle as Kafka's do.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="a server.properties file")
    parser.add_argument(
        "--override", metavar="KEY=VALUE", action="append", default=[], help="one setting; may be given again"
    )
    parser.add_argument("--port", type=int, metavar="P", help="port of the only listener; 0: any free one")
    parser.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="N",
        help="how many brokers, with ids from node.id and ports from --port on",
    )
    parser.add_argument("--data", metavar="DIR", help="where topics, quotas and the usage record are kept")
    parser.add_argument(
        "--port-file",
        metavar="FILE",
        help="write the port there once the broker answers, a line for each listener of each node: those that are "
        "listened on, whatever is advertised",
    )
    parser.add_argument(
        "--list-settings", action="store_true", help="print every setting with its default, and stop"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log more")
    return parser


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM. Returns 0 after a clean stop."""
    from tidegate.cli.serving import list_settings, serve

    return list_settings() if args.list_settings else serve(args)
