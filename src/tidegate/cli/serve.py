"""`tidegate serve`: a Kafka-protocol broker with an embedded log that throttles its clients as Kafka does."""

import argparse

from tidegate.log_format import LOG_FORMATS, TEXT

__all__ = ["add_parser", "add_process_options", "run"]

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

Settings have Kafka's names (listeners, log.dirs, num.partitions,
quota.window.num, ...). Options of this command take precedence over --override,
which takes precedence over the file. `--list-settings` prints all settings.

Set quotas with any Kafka admin client, for example:
  kafka-configs.sh --bootstrap-server 127.0.0.1:9092 --alter \\
      --add-config producer_byte_rate=1048576 \\
      --entity-type clients --entity-name loader

--nodes shows how quotas work on a cluster: several brokers in one process, over
one data directory, without replication. Partitions are spread over the brokers.
Each broker measures and throttles its own clients, so three brokers admit three
times the bytes. The first is the controller, which applies mutation quotas for
all.

Ctrl-C stops the broker at once; acknowledged data is on disk."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command and its options to the command line."""
    parser = subparsers.add_parser(
        "serve",
        help="run a broker for any Kafka client",
        description="Run a Kafka broker with an embedded log. It throttles clients as Kafka does.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", metavar="FILE", help="read settings from FILE, in the format of server.properties"
    )
    parser.add_argument(
        "--override",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set one setting; repeatable",
    )
    parser.add_argument("--port", type=int, metavar="P", help="port of the only listener; 0: any free port")
    parser.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="N",
        help="number of brokers; ids count up from node.id, ports from --port",
    )
    parser.add_argument("--data", metavar="DIR", help="directory for topics, quotas and the usage record")
    parser.add_argument(
        "--usage-group",
        metavar="GROUP",
        help="let a group of the system read the usage record; the broker's user must be a member",
    )
    parser.add_argument(
        "--list-settings",
        action="store_true",
        help="print all settings with their defaults and descriptions, and exit",
    )
    add_process_options(parser, runs="broker")
    return parser


def add_process_options(parser: argparse.ArgumentParser, *, runs: str) -> None:
    """Add the options that `serve` and `gateway` share. runs: what the process runs, for the help."""
    parser.set_defaults(process=None)  # the number of a process, in a gateway with several processes
    parser.add_argument(
        "--port-file",
        metavar="FILE",
        help=f"write the ports to FILE when the {runs} is ready, one line for each listener of each broker",
    )
    parser.add_argument(
        "--stop-on-eof",
        action="store_true",
        help=f"stop when standard input (a pipe) is closed, such as when the process that started the {runs} ends",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="log all of Tidegate at level DEBUG instead of WARNING; -vv: also the libraries that it uses",
    )
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=TEXT,
        help="format of the log on stderr: text, or json with one object a line (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM. Returns 0 after a clean stop."""
    from tidegate.server.short_collections import import_without_collections

    with import_without_collections():
        from tidegate.cli.serving import list_settings, serve

    return list_settings() if args.list_settings else serve(args)
