"""Threads that ask the broker one thing after the other, until it is killed, and go on when they are told to."""

import random
import threading
from collections.abc import Callable, Hashable, Sequence

from tests.kills.connection import ANONYMOUS, Connection, Entity, own_quotas
from tests.kills.intended import Intended
from tests.kills.ledger import Delivery, Partition

from tidegate.error_codes import THROTTLING_QUOTA_EXCEEDED

__all__ = ["PROBE", "Counted", "Quotas", "Settings", "Topics", "Worker"]

PROBE = "probe"
"""A client id whose quota shows that quotas are in force."""
PARK_S = 150.0
_BULK = (3, 40, 150, 400)  # entities in one request: up to a hundred are stored at once, more in two steps

_GROUPS = "client.quota.callback.group."  # settings whose values are not described
_FROM_THE_START = ("", "min.insync.replicas")


class Worker(threading.Thread):
    """Ask while the broker is there. ports: of its nodes. problem: what was wrong, if anything was."""

    def __init__(self, name: str, rng: random.Random, ports: Sequence[int]) -> None:
        super().__init__(name=name, daemon=True)
        self.rng = rng
        self.ports = ports
        self.lives = 0
        self.problem: Exception | None = None
        self._may_go = threading.Event()
        self._parked = threading.Event()
        self._is_over = False

    def release(self) -> None:
        """Say that the broker is there."""
        self._parked.clear()
        self._may_go.set()

    def halt(self) -> None:
        """Say that the broker is about to be killed: its end is no problem."""
        self._may_go.clear()

    def wait_parked(self) -> None:
        """Wait until it asks no more. Raises its problem."""
        assert self._parked.wait(PARK_S), f"{self.name} does not end"
        if self.problem is not None:
            raise self.problem

    def end(self) -> None:
        """End the thread, which is parked."""
        self._is_over = True
        self._may_go.set()
        self.join()

    def run(self) -> None:
        """Live, once for each life of the broker."""
        while True:
            self._parked.set()
            self._may_go.wait()
            if self._is_over:
                return
            self._parked.clear()
            try:
                self._live()
            except OSError as error:
                if self._may_go.is_set():
                    self._give_up(ConnectionError(f"{self.name} lost its connection, not killed: {error}"))
            except Exception as error:
                self._give_up(error)

    def _give_up(self, problem: Exception) -> None:
        self.problem = problem
        self._may_go.clear()

    def _live(self) -> None:
        self.lives += 1
        connection = Connection(self.rng.choice(self.ports), self.client_id())
        try:
            self.connected(connection)
            while self._may_go.is_set():
                self.step(connection)
        finally:
            connection.close()

    def client_id(self) -> str:
        """Return the client id of the next connection."""
        return self.name

    def connected(self, connection: Connection) -> None:
        """Begin to use a connection."""

    def step(self, connection: Connection) -> None:
        """Ask something."""
        raise NotImplementedError


class Quotas(Worker):
    """Set, change and remove quotas of all kinds and levels, up to hundreds of them in a request."""

    def __init__(self, name: str, rng: random.Random, ports: Sequence[int], clients: Sequence[str]) -> None:
        super().__init__(name, rng, ports)
        self.intended = Intended("quotas")
        self._entities: list[Entity] = [(("client-id", client),) for client in (*clients, None)]
        self._entities += [(("client-id", client), ("user", ANONYMOUS)) for client in (*clients[:2], None)]
        self._entities += [(("client-id", client), ("user", None)) for client in (*clients[:2], None)]
        self._entities += [(("user", ANONYMOUS),), (("user", None),)]

    def alter(self, connection: Connection, changes: dict[Entity, dict[str, float | None]]) -> None:
        """Ask for some, of one request."""
        flat = {(entity, key): value for entity, values in changes.items() for key, value in values.items()}
        self.intended.begin(flat)
        connection.alter_quotas(changes)
        self.intended.acknowledge()

    def step(self, connection: Connection) -> None:
        """Alter a few entities, or many that nobody has; the probe's quota with them."""
        rng = self.rng
        changes: dict[Entity, dict[str, float | None]] = {
            own_quotas(PROBE): {"producer_byte_rate": float(rng.randint(500, 1500))}
        }
        if rng.random() < 0.1:
            for _ in range(rng.choice(_BULK)):
                changes[(("client-id", f"nobody-{rng.randrange(500)}"),)] = self._values()
        else:
            for entity in rng.sample(self._entities, rng.randint(1, 4)):
                changes[entity] = self._values()
        if rng.random() < 0.2:
            rate = None if rng.random() < 0.3 else float(rng.randint(500, 3000))
            changes[(("ip", rng.choice(("127.0.0.1", None))),)] = {"connection_creation_rate": rate}
        self.alter(connection, changes)

    def _values(self) -> dict[str, float | None]:
        rng = self.rng
        values: dict[str, float | None] = {
            "producer_byte_rate": float(rng.randint(200_000, 8_000_000)),
            "consumer_byte_rate": float(rng.randint(200_000, 8_000_000)),
            "request_percentage": rng.uniform(5, 400),
            "controller_mutation_rate": rng.uniform(5, 100),
        }
        for key in values:
            if rng.random() < 0.35:
                values[key] = None
        return dict(rng.sample(list(values.items()), rng.randint(1, 4)))


class Settings(Worker):
    """Change settings of single nodes and of all: of connections, of what is beyond Kafka, and the callback."""

    def __init__(self, name: str, rng: random.Random, ports: Sequence[int], clients: Sequence[str]) -> None:
        super().__init__(name, rng, ports)
        self.intended = Intended("settings")
        some: Callable[[], str] = lambda: f"client-id={rng.choice(clients)}"  # noqa: E731
        self._values: dict[str, Callable[[], str]] = {
            "tidegate.quota.throttle.max.ms": lambda: str(rng.choice((0, 300, 1000, 5000))),
            "tidegate.quota.observe": lambda: rng.choice(("none", some())),
            "tidegate.quota.exempt": lambda: rng.choice(("none", some())),
            "tidegate.quota.smooth": lambda: rng.choice(("none", some())),
            "tidegate.quota.smooth.burst.seconds": lambda: str(rng.randint(1, 5)),
            "tidegate.quota.debt.max.seconds": lambda: str(rng.randint(0, 5)),
            "max.connections": lambda: str(rng.randint(1000, 5000)),
            "max.connections.per.ip": lambda: str(rng.randint(1000, 5000)),
            "max.connections.per.ip.overrides": lambda: f"127.0.0.1:{rng.randint(1000, 5000)}",
            "max.connection.creation.rate": lambda: str(rng.randint(500, 5000)),
        }
        self._callback: dict[str, Callable[[], str]] = {
            "client.quota.callback.class": lambda: "tidegate.callbacks:QuotaGroups",
            f"{_GROUPS}few.members": lambda: f"client-id:{rng.choice(clients)}",
            f"{_GROUPS}few.producer_byte_rate": lambda: str(rng.randint(300_000, 3_000_000)),
        }

    def alter(self, connection: Connection, node: str, changes: dict[str, str | None]) -> None:
        """Ask for some, of one request."""
        self.intended.begin(
            {(node, name): value for name, value in changes.items() if not name.startswith(_GROUPS)}
        )
        connection.alter_settings(node, changes)
        self.intended.acknowledge()

    def step(self, connection: Connection) -> None:
        """Set or delete a few, or all of the callback's."""
        rng = self.rng
        if rng.random() < 0.15:
            node, names = "", list(self._callback)
            removed = rng.random() < 0.4
            changes = {name: None if removed else self._callback[name]() for name in names}
        else:
            node = rng.choice(("", str(self.ports.index(connection.port) + 1)))
            names = rng.sample(list(self._values), rng.randint(1, 4))
            changes = {name: None if rng.random() < 0.3 else self._values[name]() for name in names}
        self.alter(connection, node, changes)

    def found(self, connection: Connection) -> dict[Hashable, str]:
        """Return what a node says of itself and of all."""
        return {
            (node, name): value
            for node in ("", str(self.ports.index(connection.port) + 1))
            for name, value in connection.settings(node).items()
            if (node, name) != _FROM_THE_START and not name.startswith(_GROUPS)
        }

    def in_force(self, node: int, name: str) -> str | None:
        """Return what was set last for a node."""
        return self.intended.state.get((str(node), name), self.intended.state.get(("", name)))


class Topics(Worker):
    """Create, grow and delete topics; some come back under a name that was deleted."""

    prefix = "churn-"
    _names = 12

    def __init__(self, name: str, rng: random.Random, ports: Sequence[int]) -> None:
        super().__init__(name, rng, ports)
        self.intended = Intended("topics")

    def step(self, connection: Connection) -> None:
        """Do one of them."""
        rng, there = self.rng, self.intended.state
        name = f"{self.prefix}{rng.randrange(self._names)}"
        if name not in there:
            count = rng.choice((1, 2, 5, 20))
            self.intended.begin({name: count})
            error_code = connection.create_topic(name, count, segment_bytes=str(1 << 20))
        elif rng.random() < 0.3 and there[name] < 60:
            count = there[name] + rng.randint(1, 10)
            self.intended.begin({name: count})
            error_code = connection.add_partitions(name, count)
        elif rng.random() < 0.5:
            partition = rng.randrange(there[name])
            leader = connection.leaders([name])[name][partition]
            if self.ports[leader - 1] == connection.port:
                connection.produce(name, partition, b"soon gone")
            return
        else:
            self.intended.begin({name: None})
            error_code = connection.delete_topic(name)
        if error_code == THROTTLING_QUOTA_EXCEEDED:
            self.intended.refuse()
            return
        assert error_code == 0, (name, error_code)
        self.intended.acknowledge()

    def found(self, connection: Connection) -> dict[Hashable, int]:
        """Return how many partitions each has, as the broker says."""
        leaders = connection.leaders()
        return {name: len(parts) for name, parts in leaders.items() if name.startswith(self.prefix)}


class Counted(Worker):
    """Produce a record at a time and count the answers. counts: sent and answered requests, by client id."""

    def __init__(
        self,
        name: str,
        rng: random.Random,
        ports: Sequence[int],
        producer: int,
        partitions: Sequence[Partition],
    ) -> None:
        super().__init__(name, rng, ports)
        self.connections: dict[str, Connection] = {}
        self._producer = producer
        self._partitions = partitions
        self._led: list[Partition] = []

    def client_id(self) -> str:
        """Return one that no other connection has."""
        return f"{self.name}-{self.lives}"

    def connected(self, connection: Connection) -> None:
        """Find the partitions that the node leads."""
        self.connections[self.client_id()] = connection
        leaders = connection.leaders(sorted({partition.topic for partition in self._partitions}))
        self._led = [
            partition
            for partition in self._partitions
            if self.ports[leaders[partition.topic][partition.number] - 1] == connection.port
        ]

    def step(self, connection: Connection) -> None:
        """Produce a record."""
        partition = self.rng.choice(self._led)
        stream = partition.stream(self._producer, Delivery.AT_MOST_ONCE)
        count, value = stream.send()
        offset, _ = connection.produce(partition.topic, partition.number, value)
        stream.acknowledge(count, offset)
