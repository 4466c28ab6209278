"""`tidegate recommend`: proposes quotas from recorded traffic, as a file or as commands of Kafka's own tool."""

import argparse
import io
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from tidegate.cli.arguments import number, print_error
from tidegate.cli.job_options import json_option, location_type, opened, running_record, where_options
from tidegate.cli.metrics_options import add_prometheus_options, check_source, source_of
from tidegate.errors import ConfigError

if TYPE_CHECKING:
    from tidegate.pipeline.proposals.wanted import Wanted

__all__ = ["add_parser", "run"]

_EXIT_TOO_LITTLE = 3

_DESCRIPTION = """\
Propose quotas: a default for all clients, and overrides for the few that need
more, with a reason for each number. The first comments of the output contain a
forecast of the recorded traffic under these quotas. The forecast never
throttles protected clients."""

_EPILOG = """\
examples:
  tidegate recommend ./usage > quotas.yaml
  tidegate recommend ./usage --protect user=checkout --headroom 2
  tidegate recommend ./usage --budget producer_byte_rate=100MiB \\
                             --budget controller_mutation_rate=20
  tidegate recommend ./usage --no-default     overrides only
  tidegate recommend ./usage --last 7d --json   for programs: docs/results.md
  tidegate recommend --prometheus http://localhost:9090 --match 'job="kafka"'
  tidegate recommend --prometheus answer.json --by client-id
  tidegate recommend ./usage --as kafka-configs   for Kafka's own tool
  tidegate quotas plan quotas.yaml --bootstrap-server localhost:9092
                                          what `tidegate quotas apply` changes

An entity needs the smallest limit that would never have throttled it
(`tidegate limits`). The proposal is that limit times --headroom, rounded up to
a number such as 12MB (at most 14 % more). An entity that needs at least twice
as much as the next one gets an override: at most one in ten, or three in a
small cluster.
--budget is the load that one broker may carry if all clients use their quotas
fully. If the limits add up to more, the largest are cut to the same value;
protected entities keep theirs.

A proposal needs requests in 30 windows of 10 seconds, and 100 requests of each
quota type that it sets; --force removes this check. Request quotas are never
proposed from an imported record, whose request times are incomplete. Internal
clients of brokers, such as broker-1-fetcher-0, are left out and counted.

The output is a quotas.yaml (docs/quotas-file.md) for `tidegate replay
--quotas`. Its first comments contain the forecast (closed loop), clients that
use brokers unevenly, clients that were throttled when recorded, so that their
need is not known, and consumers that could not catch up: their lag is more than
ten seconds of their quota.
It contains user names and client ids, which are personal data.

--prometheus reads Kafka's own metrics of clients (byte-rate, request-time,
mutation-rate, throttle-time), as the JMX exporter and Strimzi write them, where
a request log cannot be switched on: docs/metrics-as-a-source.md. There is no
forecast then, and bursts between two scrapes are not seen.
A usage record needs the extra 'pipeline' (README, Install); metrics do not.

exit codes:
  0    done
  2    an option, the files, Java or Spark cannot be used, or the protected
       entities alone need more than the budget; the reason is on stderr
  3    too little data: nothing is proposed without --force
  130  interrupted with Ctrl-C"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "recommend",
        help="propose quotas to set, with reasons",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        type=location_type,
        help="usage directory of a broker: a path or URI",
    )
    add_prometheus_options(
        parser,
        what="read Kafka's metrics of clients of the last 7 days, or of a range of time, instead of DIR",
    )
    parser.add_argument(
        "--by",
        choices=("both", "user", "client-id"),
        help="level of the quotas; both: user and client id (default: that of --protect; else user if the record "
        "has several users; else client-id)",
    )
    parser.add_argument(
        "--headroom",
        metavar="FACTOR",
        type=number(1, 1000),
        default=1.5,
        help="multiply the limit that each entity needs by FACTOR (default: 1.5)",
    )
    parser.add_argument(
        "--budget",
        metavar="KEY=VALUE",
        type=_budget,
        action="append",
        default=[],
        help="largest load of one broker, by quota type, such as producer_byte_rate=100MiB; repeatable",
    )
    parser.add_argument(
        "--protect",
        metavar="TYPE=NAME",
        type=_protected,
        action="append",
        default=[],
        help="user=NAME or client-id=NAME that must not be throttled; repeatable",
    )
    parser.add_argument(
        "--no-default",
        dest="with_default",
        action="store_false",
        help="propose quotas only for protected entities and for those that need much more than others",
    )
    parser.add_argument("--force", action="store_true", help="propose quotas even from too little data")
    parser.add_argument(
        "--as",
        dest="form",
        choices=("quotas.yaml", "kafka-configs"),
        default="quotas.yaml",
        help="output format (default: quotas.yaml)",
    )
    json_option(parser)
    where_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the job and print the quotas."""
    check_source(args)
    if args.json and args.form != "quotas.yaml":
        raise ConfigError("--json cannot be used with --as", hint="give either --json or --as")
    from tidegate.pipeline.proposals.evidence import TooLittleDataError
    from tidegate.pipeline.proposals.wanted import Wanted

    wanted = Wanted(
        headroom=args.headroom,
        budgets=_once_each(args.budget),
        protect=args.protect,
        force=args.force,
        with_default=args.with_default,
    )
    try:
        if args.prometheus:
            _run_from_metrics(args, wanted)
        else:
            _run_from_record(args, wanted)
    except TooLittleDataError as error:
        print_error(str(error), error.hint)
        return _EXIT_TOO_LITTLE
    return 0


def _run_from_record(args: argparse.Namespace, wanted: "Wanted") -> None:
    """Propose quotas from a usage record, and print them."""
    from tidegate.pipeline import recommend
    from tidegate.pipeline.proposals.notes import recommend_document
    from tidegate.pipeline.proposals.recommend import forecast_levels
    from tidegate.pipeline.replay.limits import levels_of
    from tidegate.pipeline.report.console import print_document

    plans = [levels_of("both"), forecast_levels("both")]
    options = {field.name: getattr(wanted, field.name) for field in fields(wanted)}
    with opened(args) as files, running_record(args, files, plans=plans) as record:
        found = recommend(record, by=args.by, only_throttled=True, **options)
    if args.json:
        document = recommend_document(found.found, wanted, notes=found.notes(), events=found.rows)
        print_document(document, found.missing)
    else:
        _print_text(found.text(args.form))


def _run_from_metrics(args: argparse.Namespace, wanted: "Wanted") -> None:
    """Propose quotas from metrics, and print them."""
    from tidegate.pipeline.metrics import RecommendedFromMetrics, measured_of
    from tidegate.pipeline.prometheus.proposal import recommend_from_metrics

    measured = measured_of(source_of(args), args.from_ms, args.to_ms, args.last_ms)
    found = RecommendedFromMetrics(found=recommend_from_metrics(measured, args.by, wanted), wanted=wanted)
    if args.json:
        print(json.dumps(found.document(), allow_nan=False))
    else:
        _print_text(found.text(args.form))


def _print_text(text: str) -> None:
    """Print a quotas file in UTF-8, the encoding in which it is read."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # not so in a notebook
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the terminal's encoding is
    print(text, end="")


def _once_each(budgets: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return budgets by key. Raises `ConfigError` if a key is given twice."""
    for (key, _), (following, _) in itertools.pairwise(sorted(budgets)):
        if key == following:
            raise ConfigError(f"--budget {key} is given twice", hint="give one --budget for each key")
    return dict(budgets)


def _budget(text: str) -> tuple[str, float]:
    """Return Kafka's key and a value. Raises `argparse.ArgumentTypeError`."""
    from tidegate.config.values import QuotaValueError, did_you_mean, parse_value
    from tidegate.pipeline.proposals.wanted import BUDGET_KEYS

    key, equals, value = text.partition("=")
    if key not in BUDGET_KEYS or not equals:
        is_key = key in BUDGET_KEYS
        hint = "a value is a number or a size, such as 100MiB" if is_key else did_you_mean(key, BUDGET_KEYS)
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r} (hint: {hint})")
    try:
        return key, parse_value(key, value, (("user", None),))
    except QuotaValueError as error:
        raise argparse.ArgumentTypeError(f"{key} {error.expected}, got {value!r}") from error
    except ConfigError as error:
        hint = f" (hint: {error.hint})" if error.hint else ""
        raise argparse.ArgumentTypeError(f"{error}{hint}") from error


def _protected(text: str) -> tuple[str, str]:
    """Return the type of an entity and its name. Raises `argparse.ArgumentTypeError`."""
    from tidegate.pipeline.proposals.wanted import PROTECTED_TYPES

    kind, equals, name = text.partition("=")
    if kind not in PROTECTED_TYPES or not equals or not name:
        raise argparse.ArgumentTypeError(f"expected user=NAME or client-id=NAME, got {text!r}")
    return kind, name
