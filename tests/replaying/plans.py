"""Plans that go beyond Kafka, made from a seed: groups that share a limit, and smooth mode."""

from random import Random
from urllib.parse import quote

from tests.replaying.logs import CLIENTS

from tidegate.callbacks import QuotaGroups
from tidegate.quota import QuotaRecord
from tidegate.quota.admin.groups import Groups

__all__ = ["callback_of", "random_groups", "random_smooth"]

_PREFIX = "client.quota.callback.group"
_LIMITS = {
    "producer_byte_rate": (100.0, 2000.0, 50_000.0),
    "consumer_byte_rate": (100.0, 2000.0, 50_000.0),
    "request_percentage": (0.01, 0.5, 3.7),
    "controller_mutation_rate": (0.5, 2.0, 30.0),
}
_ENTITIES = (
    (),
    (("user", None),),
    (("client-id", None),),
    (("user", "alice"),),
    (("client-id", "c1"),),
    (("client-id", "c1"), ("user", "a b:c")),
)


def random_groups(rng: Random, *, clients: tuple[tuple[str, str], ...] = CLIENTS) -> Groups:
    """Return up to three groups of some of the users and client ids; some limits are missing."""
    users, client_ids = zip(*clients, strict=True)
    names = [("user", user) for user in {*users, "nobody"}]
    names += [("client-id", client_id) for client_id in {*client_ids, "no id"} if client_id]
    groups = ("etl", "a-b.c", "9")
    members = {name: rng.choice(groups) for name in sorted(names) if rng.random() < 0.4}
    limits = {
        (group, key): rng.choice(values)
        for group in groups
        for key, values in _LIMITS.items()
        if group in members.values() and rng.random() < 0.7
    }
    return Groups(members=members, limits=limits)


def random_smooth(rng: Random) -> tuple[QuotaRecord, ...]:
    """Return the records of smooth mode for everybody, or for some; of a burst and a bound on debt, or not."""
    entities = {rng.choice(_ENTITIES) for _ in range(rng.randint(1, 2))}
    records = [
        QuotaRecord(entity=entity, key="tidegate.quota.smooth", value=1.0)
        for entity in sorted(entities, key=repr)
    ]
    for key in ("tidegate.quota.smooth.burst.seconds", "tidegate.quota.debt.max.seconds"):
        if rng.random() < 0.5:
            records.append(QuotaRecord(entity=(), key=key, value=float(rng.randint(1, 20))))
    return tuple(records)


def callback_of(groups: Groups) -> QuotaGroups:
    """Return the callback that has these groups, by its settings."""
    members: dict[str, list[str]] = {}
    for (kind, name), group in groups.members.items():
        members.setdefault(group, []).append(f"{kind}:{quote(name, safe='')}")
    settings = {f"{_PREFIX}.{group}.members": ",".join(names) for group, names in members.items()}
    settings |= {f"{_PREFIX}.{group}.{key}": str(limit) for (group, key), limit in groups.limits.items()}
    callback = QuotaGroups()
    callback.configure(settings)
    return callback
