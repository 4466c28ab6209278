"""The part of a node that makes it a gateway: connections to its broker, and handlers that do more than forward.

`tidegate.gateway.gateway` serves a node with both; `tidegate.gateway.relay` has the handlers that only forward.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidegate.clock import Clock
from tidegate.gateway.brokers import Broker, Brokers
from tidegate.gateway.logins import handle_passing_authenticate, handle_passing_handshake
from tidegate.gateway.mutations import handle_create_partitions, handle_create_topics, handle_delete_topics
from tidegate.gateway.rights import with_quota_rights
from tidegate.gateway.shared_port import BrokerNetwork
from tidegate.gateway.turn_sends import TurnSends
from tidegate.gateway.upstream import Upstream
from tidegate.gateway.upstream_login import UpstreamSecurity
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.connection.channel import Channel
from tidegate.server.handlers.client_quotas import handle_alter_client_quotas, handle_describe_client_quotas
from tidegate.server.handlers.sasl import handle_sasl_authenticate, handle_sasl_handshake
from tidegate.server.node import Node
from tidegate.server.requests.handler import Handler
from tidegate.server.settings.table import KAFKA_EXACT
from tidegate.wire import RequestHeader

__all__ = ["NodeRelay", "own_handlers"]

SCRATCH_BYTES = 256 * 1024


class NodeRelay:
    """The connections of one node's clients to its broker. A `Relay` of the node. gauges: metrics of the process."""

    def __init__(
        self,
        broker: Broker,
        network: BrokerNetwork,
        *,
        security: UpstreamSecurity,
        gauges: Callable[[], Iterable[tuple[str, float, str]]],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._broker = broker
        self.gauges = gauges
        self._security = security
        self._poller = network.poller
        self._clock, self._loop = clock, loop
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.turn_sends = TurnSends(clock.monotonic_ns)

    def on_open(self, channel: Channel) -> None:
        """Prepare the connection to the broker, which is opened for the first request."""
        channel.connection.upstream = Upstream(
            channel,
            self._broker,
            security=self._security,
            poller=self._poller,
            loop=self._loop,
            scratch=self._scratch,
            monotonic_ns=self._clock.monotonic_ns,
            turn_sends=self.turn_sends,
        )

    def on_close(self, channel: Channel) -> Iterable[tuple[RequestHeader, int]]:
        """Close the connection of a channel; return the requests that were sent ahead of their turn."""
        upstream: Upstream = channel.connection.upstream
        upstream.close()
        return upstream.unserved()


def own_handlers(
    node: Node, quotas: QuotaAdministration, brokers: Brokers, *, logs_in: bool
) -> dict[int, Handler]:
    """Return the handlers of the APIs that the gateway answers itself or reads. logs_in: see `Gateway`."""
    describe = partial(handle_describe_client_quotas, quotas.definitions)
    alter = partial(handle_alter_client_quotas, quotas, lambda: node.config)

    def charges_validation() -> bool:
        return bool(node.config[KAFKA_EXACT])

    own: dict[int, Handler] = {
        DESCRIBE_CLIENT_QUOTAS: partial(with_quota_rights, describe),
        ALTER_CLIENT_QUOTAS: partial(with_quota_rights, alter),
        CREATE_TOPICS: partial(handle_create_topics, lambda: brokers.default_partitions, charges_validation),
        CREATE_PARTITIONS: partial(handle_create_partitions, charges_validation),
        DELETE_TOPICS: handle_delete_topics,
    }
    with_sasl = frozenset(listener.name for listener in node.config.listeners if listener.sasl is not None)
    if with_sasl or logs_in:
        own[SASL_HANDSHAKE] = partial(handle_sasl_handshake, with_sasl)
        own[SASL_AUTHENTICATE] = handle_sasl_authenticate
    else:
        own[SASL_HANDSHAKE] = handle_passing_handshake
        own[SASL_AUTHENTICATE] = partial(handle_passing_authenticate, node.log_in)
    return own
