"""Ask a real Apache Kafka and `tidegate serve` the same, and print where their answers differ.

python -m tests.differential --seed 7 --count 500
python -m tests.differential --seed 7 --only 123,456   # two requests of that run alone
python -m tests.differential --apis Metadata,OffsetFetch
"""

import argparse
import collections
import re
import tempfile
from pathlib import Path

from bench.ladder.brokers import KafkaBench, TidegateBench
from tests.differential.requests import COMPARED
from tests.differential.run import Difference, compare
from tests.differential.sides import Side

from tidegate.wire import API_BY_KEY

SHOWN_CHARACTERS = 1500


def main() -> None:
    """Compare as the command line asks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--apis", help="names, by commas; default: all that are compared")
    parser.add_argument("--only", help="numbers of requests, by commas")
    options = parser.parse_args()
    names = options.apis.split(",") if options.apis else [API_BY_KEY[key].name for key in COMPARED]
    keys = [key for key in COMPARED if API_BY_KEY[key].name in names]
    numbers = [int(n) for n in options.only.split(",")] if options.only else list(range(options.count))
    with tempfile.TemporaryDirectory() as folder:
        brokers = [
            KafkaBench("kafka", Path(folder) / "kafka"),
            TidegateBench("tidegate", Path(folder) / "tidegate"),
        ]
        try:
            sides = [Side(broker.name, broker.start().port) for broker in brokers]
            found = list(compare(*sides, seed=options.seed, numbers=numbers, keys=keys))
        finally:
            for broker in brokers:
                broker.stop()
        for difference in found:
            print(_short(difference))
        by_api = collections.Counter(API_BY_KEY[difference.made.api_key].name for difference in found)
        print(
            f"seed {options.seed}: {len(numbers)} requests, {len(found)} answered otherwise: {dict(by_api)}"
        )


def _short(difference: Difference) -> str:
    made = difference.made
    title = f"--- request {difference.number}: {API_BY_KEY[made.api_key].name} v{made.version}"
    parts = [("asked", made.message), ("kafka", difference.kafka), ("tidegate", difference.tidegate)]
    lines = [
        f"  {name:8} {re.sub(r'x{50,}', 'x...x', str(value))[:SHOWN_CHARACTERS]}" for name, value in parts
    ]
    return "\n".join([title, *lines])


main()
