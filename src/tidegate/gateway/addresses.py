"""The addresses of the gateway: a port for each broker, or one port and a host name for each.

A listener distinguishes brokers by port: the broker with id N is at the listener's port plus N. If the advertised host
contains `{id}`, the listener has one port, and distinguishes brokers by the server name in the TLS handshake (SNI).

>>> addresses = Addresses({"PLAINTEXT": ("gateway1", 19092), "SSL": ("broker-{id}.kafka.example.com", 9093)})
>>> addresses.of(3, "PLAINTEXT"), addresses.of(3, "SSL")
(('gateway1', 19095), ('broker-3.kafka.example.com', 9093))
>>> names = ServerNames("broker-{id}.kafka.example.com")
>>> names.find("broker-3.kafka.example.com"), names.find("kafka.example.com") == ANY_BROKER, names.find("example.com")
(3, True, None)
"""

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from tidegate.errors import ConfigError
from tidegate.wire import Message

__all__ = ["ANY_BROKER", "BROKER_ID", "MAX_PORT", "Addresses", "ServerNames"]

_log = logging.getLogger("tidegate.gateway")

MAX_PORT = 65_535
ANY_BROKER = -1
"""The broker id for a bootstrap name, which leads to any broker. No broker has this id."""
BROKER_ID = "{id}"
UNKNOWN_PLACE = "", -1
"""Host and port in a response that names no broker."""
_IDS = r"(0|[1-9][0-9]{0,9})"


class Addresses:
    """The addresses at which the clients of each listener find the brokers.

    listeners: by name the advertised host, and the port of the broker with id 0.
    """

    def __init__(self, listeners: Mapping[str, tuple[str, int]]) -> None:
        self._listeners = dict(listeners)

    def of(self, broker_id: int, listener: str) -> tuple[str, int]:
        """Return host and port. Raises `ConfigError` if the port would be out of range."""
        place = self.place(broker_id, listener)
        if place is None or broker_id < 0:
            port = self._listeners[listener][1]
            raise ConfigError(
                f"broker {broker_id} has no port: {port} plus its id is {port + broker_id}, "
                f"expected at most {MAX_PORT}",
                hint="choose a lower port for --listen",
            )
        return place

    def place(self, broker_id: int, listener: str) -> tuple[str, int] | None:
        """Return host and port, `UNKNOWN_PLACE` for the id of no broker; None if the broker has no port."""
        host, port = self._listeners[listener]
        if broker_id < 0:
            return UNKNOWN_PLACE
        if BROKER_ID in host:
            return host.replace(BROKER_ID, str(broker_id)), port
        return (host, port + broker_id) if broker_id <= MAX_PORT - port else None

    def warn_hidden(self, broker_ids: Sequence[int], listener: str) -> None:
        """Log that brokers of a response are hidden from clients, because they have no port."""
        try:
            self.of(broker_ids[0], listener)
        except ConfigError as error:
            others = f"; {len(broker_ids) - 1} others have no port either" if len(broker_ids) > 1 else ""
            _log.warning(
                "clients do not see broker %d: %s%s; hint: %s",
                *(broker_ids[0], error, others, error.hint),
                extra={"repeats": f"no port {broker_ids[0]}"},
            )

    def rewrite_one(self, broker: Message, id_name: str, listener: str) -> bool:
        """Replace host and port of a broker, and return true; return false, with a warning, if it has no port."""
        if broker[id_name] < 0:  # no broker: the coordinator is not known
            return True
        place = self.place(broker[id_name], listener)
        if place is None:
            self.warn_hidden([broker[id_name]], listener)
            return False
        broker["host"], broker["port"] = place
        return True


class ServerNames:
    """The server names of one listener, and the broker that each leads to.

    pattern: the host of a broker, with `{id}` in the place of its id. bootstrap: the names that lead to any broker; by
    default, one: what follows the label with the id.
    """

    def __init__(self, pattern: str, bootstrap: Iterable[str] = ()) -> None:
        self.pattern = pattern
        _, _, behind = pattern.partition(BROKER_ID)
        domain = behind.partition(".")[2]
        self.bootstrap = tuple(map(_plain, bootstrap)) or ((_plain(domain),) if domain else ())
        self._broker = re.compile(_IDS.join(map(re.escape, _plain(pattern).split(BROKER_ID))))

    def name_of(self, broker_id: int) -> str:
        """Return the name of a broker."""
        return _plain(self.pattern.replace(BROKER_ID, str(broker_id)))

    def not_in(self, hosts: Collection[str], broker_ids: Iterable[int]) -> list[str]:
        """Return the bootstrap names, and names of these brokers, that a certificate with these DNS names lacks.

        >>> ServerNames("broker-{id}.example.com").not_in(["*.example.com"], [1])
        ['example.com']
        """
        given = {host.lower() for host in hosts}
        names = (*self.bootstrap, *map(self.name_of, broker_ids))
        return [name for name in names if not {name, "*." + name.partition(".")[2]} & given]

    def find(self, name: str) -> int | None:
        """Return the id of the broker that a server name stands for, or `ANY_BROKER`; None: the name is unknown."""
        name = _plain(name)
        if name in self.bootstrap:
            return ANY_BROKER
        found = self._broker.fullmatch(name)
        return None if found is None else int(found[1])


def _plain(name: str) -> str:
    """Return a host name in lower case, without a dot at its end."""
    return name.lower().removesuffix(".")
