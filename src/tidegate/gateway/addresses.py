"""The addresses of the gateway: the broker with id N is at the port of a listener plus N.

>>> addresses = Addresses({"PLAINTEXT": ("gateway1", 19092)})
>>> addresses.of(3, "PLAINTEXT")
('gateway1', 19095)
"""

from collections.abc import Iterable, Mapping

from tidegate.errors import ConfigError
from tidegate.wire import Message, ProtocolError

__all__ = ["MAX_PORT", "Addresses"]

MAX_PORT = 65_535


class Addresses:
    """The addresses at which the clients of each listener find the brokers.

    listeners: by name the host that clients are told, and the port of the broker with id 0.
    """

    def __init__(self, listeners: Mapping[str, tuple[str, int]]) -> None:
        self._listeners = dict(listeners)

    def of(self, broker_id: int, listener: str) -> tuple[str, int]:
        """Return host and port. Raises `ConfigError` where the port would be none."""
        host, port = self._listeners[listener]
        if not 0 <= broker_id <= MAX_PORT - port:
            raise ConfigError(
                f"broker {broker_id} has no port: {port} and its id make {port + broker_id}, "
                f"expected at most {MAX_PORT}",
                hint="choose a lower port for --listen",
            )
        return host, port + broker_id

    def rewrite(self, brokers: Iterable[Message], id_name: str, listener: str) -> None:
        """Replace host and port of each broker in a response. Raises `ProtocolError` for an impossible id."""
        for broker in brokers:
            if broker[id_name] < 0:  # none: a coordinator that is not known
                continue
            try:
                broker["host"], broker["port"] = self.of(broker[id_name], listener)
            except ConfigError as error:
                raise ProtocolError(str(error), path=id_name) from error
