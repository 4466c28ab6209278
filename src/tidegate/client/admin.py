"""Administration of a cluster, Apache Kafka's or Tidegate's: quotas, topics, settings, SCRAM users, ACLs and groups.

    async with Admin(load_client_settings("localhost:9092")) as admin:
        for entity, values in await admin.describe_client_quotas():
            print(entity, values)

A result per entity or topic is `None`, or the error that a broker answered. Errors that concern a whole request are
raised. Follows: Kafka `KafkaAdminClient`, KIP-546, KIP-599, B§7.3.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tidegate import error_codes
from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_GROUPS,
)
from tidegate.client.admin_messages import (
    ConfigChange,
    ConfigEntry,
    NewTopic,
    Result,
    ScramChange,
    alteration_entry,
    checked,
    config_entry,
    entity_parts_of,
    has_code,
    result_of,
    results_by_name,
    scram_message,
    topic_entry,
)
from tidegate.client.cluster import Cluster
from tidegate.client.errors import (
    BrokerError,
    ConnectionLostError,
    RequestTimeoutError,
    ThrottlingQuotaExceededError,
    only_entry,
)
from tidegate.client.settings import ClientSettings
from tidegate.quota.admin.definitions import Alteration, EntityParts, FilterComponent
from tidegate.scram import SCRAM_MECHANISMS
from tidegate.wire import ZERO_ID, Message

__all__ = ["Admin", "run_as_admin"]

_REFUSED, _TIMED_OUT = error_codes.THROTTLING_QUOTA_EXCEEDED, error_codes.REQUEST_TIMED_OUT
_COORDINATOR_MOVES = (
    error_codes.COORDINATOR_LOAD_IN_PROGRESS,
    error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.NOT_COORDINATOR,
)
_Result = TypeVar("_Result")


class Admin:
    """An administrator's client. Use it as an asynchronous context manager."""

    def __init__(self, settings: ClientSettings) -> None:
        self.cluster = Cluster(settings)

    async def __aenter__(self) -> "Admin":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.cluster.__aexit__(*error)

    # --- quotas -----------------------------------------------------------------------------------------------------

    async def describe_client_quotas(
        self, components: Iterable[FilterComponent] = (), *, strict: bool = False
    ) -> list[tuple[EntityParts, dict[str, float]]]:
        """Return the entities that a filter matches, each with its quotas by key. Without components, all of them.

        The parts of an entity are sorted by type; a name of None is the default entity. Raises `ClientError`.
        Follows: Kafka `Admin.describeClientQuotas`, B§6.7.
        """
        sent = [
            {"entity_type": part.entity_type, "match_type": part.match_type, "match": part.match}
            for part in components
        ]
        answer = checked(await self._ask(DESCRIBE_CLIENT_QUOTAS, {"components": sent, "strict": strict}))
        return [
            (entity_parts_of(entry), {each["key"]: each["value"] for each in entry["values"]})
            for entry in answer["entries"] or ()
        ]

    async def alter_client_quotas(
        self, alterations: Sequence[Alteration], *, validate_only: bool = False
    ) -> dict[EntityParts, Result]:
        """Set and remove quotas; return a result per entity. A value of None removes a quota.

        Raises `ClientError`. Follows: Kafka `Admin.alterClientQuotas`, B§6.8.
        """
        entries = [alteration_entry(each) for each in alterations]
        message = {"entries": entries, "validate_only": validate_only}
        answer = await self._ask(ALTER_CLIENT_QUOTAS, message)
        return {entity_parts_of(entry): result_of(entry) for entry in answer["entries"]}

    # --- SCRAM users ------------------------------------------------------------------------------------------------

    async def describe_scram_users(
        self, users: Sequence[str] | None = None
    ) -> dict[str, dict[str, int] | BrokerError]:
        """Return mechanisms and iterations of users, all of them by default. A user that is unknown has an error.

        Raises `ClientError`. Follows: Kafka `Admin.describeUserScramCredentials`, KIP-554.
        """
        named = None if users is None else [{"name": user} for user in users]
        answer = checked(await self._ask(DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": named}))
        names = {mechanism.type: mechanism.name for mechanism in SCRAM_MECHANISMS.values()}
        return {
            each["user"]: result_of(each)
            or {
                names.get(info["mechanism"], "UNKNOWN"): info["iterations"]
                for info in each["credential_infos"]
            }
            for each in answer["results"]
        }

    async def alter_scram_users(self, changes: Sequence[ScramChange]) -> dict[str, Result]:
        """Set and delete SCRAM credentials; return a result per user. Passwords are salted here and not sent.

        With ZooKeeper only the controller changes users. Raises `ClientError`.
        Follows: Kafka `Admin.alterUserScramCredentials`, KIP-554.
        """
        message = scram_message(changes)
        async with self.cluster.time_limit():
            while True:
                with contextlib.suppress(ConnectionLostError, RequestTimeoutError):  # it can be sent again
                    reply = await self.cluster.ask_controller(ALTER_USER_SCRAM_CREDENTIALS, message)
                    results = {each["user"]: result_of(each) for each in reply.message["results"]}
                    if not any(has_code(result, error_codes.NOT_CONTROLLER) for result in results.values()):
                        return results
                self.cluster.forget_controller()
                await asyncio.sleep(self.cluster.settings.retry_backoff_s)

    # --- settings ---------------------------------------------------------------------------------------------------

    async def describe_configs(
        self, resource_type: int, name: str, *, node_id: int | None = None, synonyms: bool = True
    ) -> list[ConfigEntry]:
        """Return the settings of a resource. node_id: the broker to ask, for a broker's own settings.

        resource_type: Kafka's number (2 topic, 4 broker). Raises `ClientError`.
        """
        resource = {"resource_type": resource_type, "resource_name": name, "configuration_keys": None}
        message = {"resources": [resource], "include_synonyms": synonyms, "include_documentation": False}
        result = checked(only_entry((await self._ask(DESCRIBE_CONFIGS, message, node_id))["results"]))
        return [config_entry(each) for each in result["configs"]]

    async def alter_configs(
        self, resource_type: int, name: str, changes: Sequence[ConfigChange], *, node_id: int | None = None
    ) -> None:
        """Change settings of a resource. Raises `ClientError`. Follows: Kafka `Admin.incrementalAlterConfigs`."""
        configs = [
            {"name": each.name, "config_operation": each.operation, "value": each.value} for each in changes
        ]
        resource = {"resource_type": resource_type, "resource_name": name, "configs": configs}
        message = {"resources": [resource], "validate_only": False}
        checked(only_entry((await self._ask(INCREMENTAL_ALTER_CONFIGS, message, node_id))["responses"]))

    # --- topics -----------------------------------------------------------------------------------------------------

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, internal ones too. Raises `ClientError`."""
        return await self.cluster.topic_names()

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        retry_on_quota_violation: bool = True,
    ) -> dict[str, Result]:
        """Create topics; return a result per topic.

        retry_on_quota_violation: try topics that a controller mutation quota refuses again when the throttle time is
        over, until `default.api.timeout.ms`; a topic that is still refused has a `ThrottlingQuotaExceededError`. False:
        such a topic has that error at once. Raises `ClientError`. Follows: Kafka `Admin.createTopics`, B§7.3.
        """
        by_name = {topic.name: topic_entry(topic) for topic in topics}
        fixed = {"validate_only": validate_only}
        return await self._mutate(CREATE_TOPICS, "topics", by_name, fixed, retry=retry_on_quota_violation)

    async def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False, retry_on_quota_violation: bool = True
    ) -> dict[str, Result]:
        """Extend topics to a number of partitions; return a result per topic. As `create_topics` otherwise."""
        by_name = {
            name: {"name": name, "count": count, "assignments": None} for name, count in counts.items()
        }
        fixed = {"validate_only": validate_only}
        return await self._mutate(
            CREATE_PARTITIONS, "results", by_name, fixed, retry=retry_on_quota_violation
        )

    async def delete_topics(
        self, names: Sequence[str], *, retry_on_quota_violation: bool = True
    ) -> dict[str, Result]:
        """Delete topics; return a result per topic. As `create_topics` otherwise."""
        by_name = {name: {"name": name, "topic_id": ZERO_ID} for name in names}
        return await self._mutate(DELETE_TOPICS, "responses", by_name, {}, retry=retry_on_quota_violation)

    # --- ACLs and groups --------------------------------------------------------------------------------------------

    async def describe_acls(self) -> list[dict[str, Any]]:
        """Return all ACLs, each as the fields of DescribeAcls with its resource. Raises `ClientError`."""
        anything = 1
        message = {
            "resource_type_filter": anything,
            "resource_name_filter": None,
            "pattern_type_filter": anything,
            "principal_filter": None,
            "host_filter": None,
            "operation": anything,
            "permission_type": anything,
        }
        answer = checked(await self._ask(DESCRIBE_ACLS, message))
        return [
            {key: resource[key] for key in ("resource_type", "resource_name", "pattern_type")} | acl
            for resource in answer["resources"]
            for acl in resource["acls"]
        ]

    async def list_groups(self) -> dict[str, str]:
        """Return the protocol type of each consumer group, by group id. Raises `ClientError`."""
        await self.cluster.refresh()
        groups: dict[str, str] = {}
        for node_id in self.cluster.node_ids:
            answer = checked(await self._ask(LIST_GROUPS, {"states_filter": [], "types_filter": []}, node_id))
            groups |= {each["group_id"]: each["protocol_type"] for each in answer["groups"]}
        return groups

    async def describe_group(self, group_id: str) -> dict[str, Any]:
        """Return a group's fields of DescribeGroups. Raises `ClientError`.

        A coordinator that is being found or is loading is asked again, until `default.api.timeout.ms`.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.cluster.settings.api_timeout_s
        while True:
            try:
                return await self._described_group(group_id)
            except BrokerError as error:
                if error.code not in _COORDINATOR_MOVES or loop.time() >= until_s:
                    raise
            await asyncio.sleep(self.cluster.settings.retry_backoff_s)

    async def _described_group(self, group_id: str) -> dict[str, Any]:
        coordinator = await self.cluster.coordinator_id(group_id)
        message = {"groups": [group_id], "include_authorized_operations": False}
        return dict(checked(only_entry((await self._ask(DESCRIBE_GROUPS, message, coordinator))["groups"])))

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _ask(self, api_key: int, message: Message, node_id: int | None = None) -> Message:
        if node_id is None:
            return (await self.cluster.ask_any(api_key, message)).message
        return (await self.cluster.ask_node(node_id, api_key, message)).message

    async def _mutate(
        self,
        api_key: int,
        results_key: str,
        by_name: dict[str, dict[str, Any]],
        fixed: Mapping[str, Any],
        *,
        retry: bool,
    ) -> dict[str, Result]:
        """Ask the controller about topics, again about those that a quota refuses; return a result per topic."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.cluster.settings.api_timeout_s
        results: dict[str, Result] = dict.fromkeys(by_name, BrokerError(_TIMED_OUT))
        open_names, answered_s = list(by_name), loop.time()
        while open_names and (left_s := until_s - loop.time()) > 0:
            message = {
                "topics": [by_name[name] for name in open_names],
                "topic_names": open_names,
                "timeout_ms": max(int(1000 * left_s), 1),
                **fixed,
            }
            try:
                async with self.cluster.time_limit(until_s):
                    reply = await self.cluster.ask_controller(api_key, message)
            except (ConnectionLostError, RequestTimeoutError):
                if loop.time() >= until_s and all(has_code(each, _TIMED_OUT) for each in results.values()):
                    raise
                self.cluster.forget_controller()
                await asyncio.sleep(self.cluster.settings.retry_backoff_s)
                continue
            answered_s = loop.time()
            results |= results_by_name(reply, results_key, open_names)
            refused = [name for name in open_names if retry and has_code(results[name], _REFUSED)]
            moved = [name for name in open_names if has_code(results[name], error_codes.NOT_CONTROLLER)]
            if moved:
                self.cluster.forget_controller()
            open_names = refused + moved
            if open_names:
                pause_s = reply.throttle_time_ms / 1000 or self.cluster.settings.retry_backoff_s
                await asyncio.sleep(min(pause_s, until_s - loop.time()))
        for name in open_names:
            if isinstance(error := results[name], ThrottlingQuotaExceededError):
                elapsed_ms = int(1000 * (loop.time() - answered_s))
                results[name] = ThrottlingQuotaExceededError(max(0, error.throttle_time_ms - elapsed_ms))
        return results


def run_as_admin(
    settings: ClientSettings, work: Callable[[Admin], Awaitable[_Result]], *, in_thread: bool = False
) -> _Result:
    """Return what `work` returns for an `Admin` of the cluster, also to plain code. Raises `ClientError`.

    in_thread: run in another thread. An event loop may then run in this one, and Ctrl-C cannot interrupt the start and
    the end of a loop: it takes effect when the work is done.
    """

    async def run() -> _Result:
        async with Admin(settings) as admin:
            return await work(admin)

    if not in_thread:
        return asyncio.run(run())
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()
