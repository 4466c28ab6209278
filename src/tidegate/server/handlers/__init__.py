"""Handlers of the APIs that a node answers itself, one module for each kind of data."""

from collections.abc import Callable
from functools import partial

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    API_VERSIONS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidegate.server.administration.acl_administration import AclAdministration
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.authentication.scram_credentials import ScramCredentials
from tidegate.server.handlers.acls import handle_create_acls, handle_delete_acls, handle_describe_acls
from tidegate.server.handlers.api_versions import api_versions_handler
from tidegate.server.handlers.client_quotas import handle_alter_client_quotas, handle_describe_client_quotas
from tidegate.server.handlers.sasl import handle_sasl_authenticate, handle_sasl_handshake
from tidegate.server.handlers.scram_credentials import (
    handle_alter_user_scram_credentials,
    handle_describe_user_scram_credentials,
)
from tidegate.server.requests.handler import Handler, HandlerTable
from tidegate.server.settings.config import ServerConfig

__all__ = ["own_handlers"]


def own_handlers(
    handlers: HandlerTable,
    quotas: QuotaAdministration,
    acls: AclAdministration | None,
    credentials: ScramCredentials | None,
    with_sasl: frozenset[str],
    settings: Callable[[], ServerConfig],
) -> dict[int, Handler]:
    """Return the handlers of the APIs that a node answers itself, and of ApiVersions, by API key.

    handlers: those of the other APIs. credentials: None where they are not kept. with_sasl: the names of listeners with
    logins. settings: returns those of the node, now.
    """
    own: dict[int, Handler] = {
        SASL_HANDSHAKE: partial(handle_sasl_handshake, with_sasl),
        SASL_AUTHENTICATE: handle_sasl_authenticate,
        DESCRIBE_ACLS: partial(handle_describe_acls, acls),
        CREATE_ACLS: partial(handle_create_acls, acls),
        DELETE_ACLS: partial(handle_delete_acls, acls),
        DESCRIBE_CLIENT_QUOTAS: partial(handle_describe_client_quotas, quotas.definitions),
        ALTER_CLIENT_QUOTAS: partial(handle_alter_client_quotas, quotas, settings),
    }
    if credentials is not None:
        own[DESCRIBE_USER_SCRAM_CREDENTIALS] = partial(handle_describe_user_scram_credentials, credentials)
        own[ALTER_USER_SCRAM_CREDENTIALS] = partial(handle_alter_user_scram_credentials, credentials)
    return {**own, API_VERSIONS: api_versions_handler({*handlers, *own})}
