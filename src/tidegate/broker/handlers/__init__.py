"""A handler for each API of the embedded log. APIs that share their rules share a module."""

import asyncio
from functools import partial

from tidegate.api_keys import (
    ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    CONSUMER_GROUP_HEARTBEAT,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TOPIC_PARTITIONS,
    ELECT_LEADERS,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_CONFIG_RESOURCES,
    LIST_GROUPS,
    LIST_OFFSETS,
    LIST_PARTITION_REASSIGNMENTS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SYNC_GROUP,
)
from tidegate.broker.cluster import ClusterView
from tidegate.broker.config_alterations import answer_each
from tidegate.broker.handlers.alter_configs import change_configs, replace_configs
from tidegate.broker.handlers.create_topics import handle_create_topics
from tidegate.broker.handlers.delete_records import handle_delete_records
from tidegate.broker.handlers.describe_cluster import handle_describe_cluster
from tidegate.broker.handlers.describe_configs import describe_configs_handler, handle_list_config_resources
from tidegate.broker.handlers.describe_topic_partitions import describe_topic_partitions_handler
from tidegate.broker.handlers.fetch import fetch_handler
from tidegate.broker.handlers.find_coordinator import handle_find_coordinator
from tidegate.broker.handlers.group_members import (
    FEW_MEMBERS_BYTES,
    handle_consumer_group_heartbeat,
    handle_heartbeat,
    handle_join_group,
    handle_leave_group,
    handle_sync_group,
)
from tidegate.broker.handlers.groups import handle_delete_groups, handle_describe_groups, handle_list_groups
from tidegate.broker.handlers.init_producer_id import handle_init_producer_id
from tidegate.broker.handlers.list_offsets import handle_list_offsets
from tidegate.broker.handlers.metadata import metadata_handler
from tidegate.broker.handlers.offset_commit import offset_commit_handler
from tidegate.broker.handlers.offset_delete import handle_offset_delete
from tidegate.broker.handlers.offset_fetch import offset_fetch_handler
from tidegate.broker.handlers.partition_logs import (
    handle_describe_log_dirs,
    handle_describe_producers,
    handle_offset_for_leader_epoch,
)
from tidegate.broker.handlers.partition_moves import (
    handle_alter_partition_reassignments,
    handle_elect_leaders,
    handle_list_partition_reassignments,
)
from tidegate.broker.handlers.produce import produce_handler
from tidegate.broker.handlers.topic_changes import handle_create_partitions, handle_delete_topics
from tidegate.broker.node_groups import NodeGroups
from tidegate.scheduling import Scheduler
from tidegate.server.requests.handler import Handler, at_once_if_short
from tidegate.server.settings.dynamic_settings import DynamicSettings
from tidegate.storage.storage import Storage

__all__ = ["handler_table"]


def handler_table(
    storage: Storage,
    cluster: ClusterView,
    settings: DynamicSettings,
    scheduler: Scheduler | None = None,
    groups: NodeGroups | None = None,
) -> dict[int, Handler]:
    """Return the handlers of a node over `storage` by API key.

    `scheduler` runs what comes later, such as long polls; by default the running event loop. groups: those that the
    node coordinates, made by default.
    """
    if scheduler is None:
        scheduler = asyncio.get_running_loop()
    if groups is None:
        groups = NodeGroups(storage, cluster, scheduler)
    return {
        PRODUCE: produce_handler(storage, cluster, scheduler),
        FETCH: fetch_handler(storage, cluster, scheduler),
        LIST_OFFSETS: partial(handle_list_offsets, storage, cluster, scheduler),
        METADATA: metadata_handler(storage, cluster),
        OFFSET_COMMIT: offset_commit_handler(groups),
        OFFSET_FETCH: offset_fetch_handler(storage, cluster),
        FIND_COORDINATOR: partial(handle_find_coordinator, cluster),
        JOIN_GROUP: at_once_if_short(partial(handle_join_group, groups)),
        HEARTBEAT: partial(handle_heartbeat, groups),
        LEAVE_GROUP: at_once_if_short(partial(handle_leave_group, groups), FEW_MEMBERS_BYTES),
        SYNC_GROUP: at_once_if_short(partial(handle_sync_group, groups)),
        DESCRIBE_GROUPS: partial(handle_describe_groups, groups),
        LIST_GROUPS: partial(handle_list_groups, groups),
        CREATE_TOPICS: partial(handle_create_topics, storage, cluster),
        DELETE_TOPICS: partial(handle_delete_topics, storage),
        DELETE_RECORDS: partial(handle_delete_records, storage, cluster),
        INIT_PRODUCER_ID: partial(handle_init_producer_id, storage),
        DESCRIBE_CONFIGS: describe_configs_handler(storage, cluster, settings),
        DELETE_GROUPS: partial(handle_delete_groups, groups),
        INCREMENTAL_ALTER_CONFIGS: partial(answer_each, partial(change_configs, storage, cluster, settings)),
        OFFSET_FOR_LEADER_EPOCH: partial(handle_offset_for_leader_epoch, storage, cluster),
        ALTER_CONFIGS: partial(answer_each, partial(replace_configs, storage, cluster, settings)),
        DESCRIBE_LOG_DIRS: partial(handle_describe_log_dirs, storage, cluster),
        ELECT_LEADERS: partial(handle_elect_leaders, storage),
        ALTER_PARTITION_REASSIGNMENTS: partial(handle_alter_partition_reassignments, storage, cluster),
        LIST_PARTITION_REASSIGNMENTS: handle_list_partition_reassignments,
        DESCRIBE_PRODUCERS: partial(handle_describe_producers, storage, cluster),
        LIST_CONFIG_RESOURCES: partial(handle_list_config_resources, storage, cluster),
        CREATE_PARTITIONS: partial(handle_create_partitions, storage, cluster),
        OFFSET_DELETE: partial(handle_offset_delete, groups),
        DESCRIBE_CLUSTER: partial(handle_describe_cluster, storage, cluster),
        CONSUMER_GROUP_HEARTBEAT: handle_consumer_group_heartbeat,
        DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions_handler(storage, cluster),
    }
