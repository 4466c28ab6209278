"""Record the request logs of real brokers of several versions: `python -m tests.request_log.make_logs [VERSION…]`.

Each broker runs for about a minute. Jars come from Maven Central into `.cache/kafka-VERSION`; what is recorded goes to
`tests/vectors/request-log/kafka-VERSION.log.gz` and `….truth.json`, or to the directory that `--out` names.
"""

import argparse
import gzip
import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from tests.request_log.brokers import LoggingKafka, wait_until
from tests.request_log.traffic import CountingClient, Truth, run_traffic

SAMPLES = Path(__file__).resolve().parents[1] / "vectors" / "request-log"
VERSIONS = {"2.8.2": True, "3.3.2": False, "3.6.2": True, "3.9.1": False, "4.0.0": False}
"""Each recorded version, and whether its broker runs with ZooKeeper."""


def record(version: str, out: Path, mutation_rounds: int, mutation_rate: float) -> None:
    """Write the log of one version and its truth."""
    with (
        tempfile.TemporaryDirectory() as directory,
        LoggingKafka(version, Path(directory) / "kafka", VERSIONS[version]) as kafka,
    ):
        wait_until(lambda: kafka.has_ended() or _answers(kafka), "the broker's first answer")
        old_clients = int(version.partition(".")[0]) < 4
        truth = run_traffic(
            kafka, old_clients=old_clients, mutation_rounds=mutation_rounds, mutation_rate=mutation_rate
        )
        totals = json.loads(kafka.totals())
        data = kafka.log.read_bytes()
    (out / f"kafka-{version}.log.gz").write_bytes(gzip.compress(data, 9, mtime=0))
    clients = {name: asdict(counted) for name, counted in truth.clients.items()}
    known = asdict(replace(truth, clients={})) | {"clients": clients, "broker_totals": totals}
    (out / f"kafka-{version}.truth.json").write_text(json.dumps(known, indent=1) + "\n")
    print(f"{version}: {len(data.splitlines())} lines")


def _answers(kafka: LoggingKafka) -> bool:
    try:
        with CountingClient(kafka, Truth("", zookeeper=False), "waiting", user="alice") as client:
            client.metadata()
            return True
    except (OSError, AssertionError):
        return False


def main() -> int:
    """Record the versions that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", metavar="VERSION", nargs="*", default=list(VERSIONS))
    parser.add_argument("--out", type=Path, default=SAMPLES)
    parser.add_argument("--mutation-rounds", type=int, default=10)
    parser.add_argument("--mutation-rate", type=float, default=2.0)
    args = parser.parse_args()
    for version in args.versions:
        record(version, args.out, args.mutation_rounds, args.mutation_rate)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
