"""Ask a real Apache Kafka and `tidegate serve` the same, and print where their answers differ.

python tests/differential.py --seed 7 --count 500
python tests/differential.py --seed 7,8,9               # one after the other, with the same brokers
python tests/differential.py --seed 7 --only 123,456    # two requests of that run alone
python tests/differential.py --apis Metadata,OffsetFetch
"""

import argparse
import collections
import tempfile
from pathlib import Path

from tests.differing.declared import row_of
from tests.differing.requests import COMPARED
from tests.differing.run import compare, described, two_brokers

from tidegate.wire import API_BY_KEY


def main() -> None:
    """Compare as the command line asks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", default="1", help="seeds, by commas")
    parser.add_argument("--count", type=int, default=500, help="requests of each seed")
    parser.add_argument("--apis", help="names, by commas; default: all that are compared")
    parser.add_argument("--only", help="numbers of requests, by commas")
    options = parser.parse_args()
    names = options.apis.split(",") if options.apis else [API_BY_KEY[key].name for key in COMPARED]
    keys = [key for key in COMPARED if API_BY_KEY[key].name in names]
    numbers = [int(n) for n in options.only.split(",")] if options.only else list(range(options.count))
    # A process that was asked to stop may still write a last file.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        two_brokers(Path(folder)) as sides,
    ):
        for seed in options.seed.split(","):
            rows: collections.Counter[str] = collections.Counter()
            by_api: collections.Counter[str] = collections.Counter()
            for difference in compare(*sides, seed=int(seed), numbers=numbers, keys=keys):
                row = row_of(difference)
                if row is None:
                    print(described(difference), flush=True)
                    by_api[API_BY_KEY[difference.made.api_key].name] += 1
                else:
                    rows[row] += 1
            print(
                f"seed {seed}: {len(numbers)} requests; answered otherwise as declared: {dict(rows)}; "
                f"not declared: {dict(by_api)}",
                flush=True,
            )


main()
