"""Time of a question to the authorizer, with few ACLs and with many.

    python bench/bench_acls.py

`kept`: the answer of an earlier question. `decided`: asked for the first time since an ACL changed.
"""

import time
from functools import partial

from tidegate.acl import Acl, Authorizer, codes
from tidegate.in_slices import run_at_once

COUNTS = (10, 1_000, 10_000, 50_000)
QUESTIONS = 20_000
HOST = "10.0.0.1"


def main() -> None:
    """Print a row for each number of ACLs."""
    print(f"{'ACLs':>8}{'kept':>12}{'decided':>12}{'one topic':>12}{'any topic':>12}")
    for count in COUNTS:
        spread, crowded = Authorizer(), Authorizer()
        spread.add_acls(_spread(count))
        crowded.add_acls(
            Acl(codes.TOPIC, "topic", codes.LITERAL, f"User:{number}", "*", codes.READ, codes.ALLOW)
            for number in range(count)
        )
        names = [f"team-{number % 97}-topic-{number}" for number in range(QUESTIONS)]
        kept = _each_ns(partial(spread.permitted, "user-5", HOST, codes.TOPIC), names[:1] * QUESTIONS)
        decided = _each_ns(partial(spread._decide, "user-5", HOST, codes.TOPIC), names)
        one = _each_ns(partial(crowded._decide, "5", HOST, codes.TOPIC), ["topic"] * QUESTIONS)
        begun = time.perf_counter_ns()
        run_at_once(crowded._decide_by_type("5", HOST, codes.WRITE, codes.TOPIC))
        by_type = time.perf_counter_ns() - begun
        print(f"{count:8,}{kept:9,.0f} ns{decided:9,.0f} ns{one:9,.0f} ns{by_type:9,.0f} ns")


def _spread(count: int) -> list[Acl]:
    """Return ACLs of a hundred users: half of them for prefixes, of a few lengths."""
    acls = []
    for number in range(count):
        prefixed = number % 2 == 0
        name = f"team-{number}-" if prefixed else f"team-{number % 97}-topic-{number}"
        pattern = codes.PREFIXED if prefixed else codes.LITERAL
        acls.append(
            Acl(codes.TOPIC, name, pattern, f"User:user-{number % 100}", "*", codes.READ, codes.ALLOW)
        )
    return acls


def _each_ns(ask, names: list[str]) -> float:
    """Return what one question takes, the best of three."""
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter_ns()
        for name in names:
            ask(name)
        best = min(best, (time.perf_counter_ns() - begun) / len(names))
    return best


if __name__ == "__main__":
    main()
