"""The TLS handshake as a login: the node counts it, limits its time, and logs a failure in one line.

Without SASL, the handshake sets the principal: the name in the client's certificate, or ANONYMOUS if the client has
shown none. With SASL, the handshake sets no principal, and the login continues.

As in Kafka, a connection whose handshake fails closes as soon as its alert has left. The delay of
`connection.failed.authentication.delay.ms` applies to answers of SASL.

Follows: Kafka `SslChannelBuilder.SslAuthenticator`, `DefaultKafkaPrincipalBuilder`, `KafkaChannel.prepare`, `Selector`.
"""

from typing import TYPE_CHECKING

from tidegate.config.principal_rules import NoRuleError
from tidegate.server.authentication.logins import Logins
from tidegate.server.connection.channel import Channel
from tidegate.server.connection.tls_session import TlsError

if TYPE_CHECKING:
    from tidegate.server.listening.tls_config import TlsConfig

__all__ = ["TlsLogin"]


class TlsLogin:
    """The handshake of one connection; a `HandshakeOwner`."""

    __slots__ = ("_channel", "_logins", "_names_user", "_tls")

    def __init__(self, logins: Logins, tls: "TlsConfig", *, names_user: bool) -> None:
        """names_user: whether the certificate names the client's user."""
        self._logins = logins
        self._tls = tls
        self._names_user = names_user
        self._channel: Channel | None = None

    def begin(self, channel: Channel) -> None:
        """Start the login of this channel."""
        self._channel = channel
        self._logins.start_login(channel)

    def on_established(self, certificate: bytes | None) -> None:
        """Set the user that the certificate names and end the login, unless SASL follows.

        Raises `TlsError` if the certificate names no user.
        """
        channel, logins = self._channel, self._logins
        assert channel is not None
        if not self._names_user:
            return
        try:
            user = self._tls.principal(certificate)
        except NoRuleError as error:
            raise TlsError(f"no principal for the client's certificate: {error}") from error
        logins.log_in(channel, user, knows_reauth=False)
        logins.end_login(channel)

    def on_handshake_failed(self, reason: str) -> None:
        """Count a failed handshake, and log the reason."""
        channel, logins = self._channel, self._logins
        assert channel is not None
        logins.counts(channel).failed_logins += 1
        logins.front.on_bad_frame(channel, f"TLS handshake failed: {reason}")
