"""A handler per API of the embedded log, one module each."""

import asyncio

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
from tidegate.broker.handlers.alter_configs import alter_configs_handler
from tidegate.broker.handlers.consumer_group_heartbeat import consumer_group_heartbeat_handler
from tidegate.broker.handlers.create_partitions import create_partitions_handler
from tidegate.broker.handlers.create_topics import create_topics_handler
from tidegate.broker.handlers.delete_groups import delete_groups_handler
from tidegate.broker.handlers.delete_records import delete_records_handler
from tidegate.broker.handlers.delete_topics import delete_topics_handler
from tidegate.broker.handlers.describe_cluster import describe_cluster_handler
from tidegate.broker.handlers.describe_configs import describe_configs_handler
from tidegate.broker.handlers.describe_groups import describe_groups_handler
from tidegate.broker.handlers.describe_log_dirs import describe_log_dirs_handler
from tidegate.broker.handlers.describe_producers import describe_producers_handler
from tidegate.broker.handlers.describe_topic_partitions import describe_topic_partitions_handler
from tidegate.broker.handlers.elect_leaders import elect_leaders_handler
from tidegate.broker.handlers.fetch import fetch_handler
from tidegate.broker.handlers.find_coordinator import find_coordinator_handler
from tidegate.broker.handlers.heartbeat import heartbeat_handler
from tidegate.broker.handlers.incremental_alter_configs import incremental_alter_configs_handler
from tidegate.broker.handlers.init_producer_id import init_producer_id_handler
from tidegate.broker.handlers.join_group import join_group_handler
from tidegate.broker.handlers.leave_group import leave_group_handler
from tidegate.broker.handlers.list_config_resources import list_config_resources_handler
from tidegate.broker.handlers.list_groups import list_groups_handler
from tidegate.broker.handlers.list_offsets import list_offsets_handler
from tidegate.broker.handlers.metadata import metadata_handler
from tidegate.broker.handlers.offset_commit import offset_commit_handler
from tidegate.broker.handlers.offset_delete import offset_delete_handler
from tidegate.broker.handlers.offset_fetch import offset_fetch_handler
from tidegate.broker.handlers.offset_for_leader_epoch import offset_for_leader_epoch_handler
from tidegate.broker.handlers.partition_reassignments import (
    alter_partition_reassignments_handler,
    list_partition_reassignments_handler,
)
from tidegate.broker.handlers.produce import produce_handler
from tidegate.broker.handlers.sync_group import sync_group_handler
from tidegate.broker.node_groups import NodeGroups
from tidegate.scheduling import Scheduler
from tidegate.server.requests.handler import Handler
from tidegate.server.settings.dynamic_settings import DynamicSettings
from tidegate.storage.storage import Storage

__all__ = ["handler_table"]


def handler_table(
    storage: Storage, cluster: ClusterView, settings: DynamicSettings, scheduler: Scheduler | None = None
) -> dict[int, Handler]:
    """Return the handlers of a node over `storage` by API key.

    `scheduler` runs what comes later, such as long polls; by default the running event loop.
    """
    if scheduler is None:
        scheduler = asyncio.get_running_loop()
    groups = NodeGroups(storage, cluster, scheduler)
    return {
        PRODUCE: produce_handler(storage, cluster, scheduler),
        FETCH: fetch_handler(storage, cluster, scheduler),
        LIST_OFFSETS: list_offsets_handler(storage, cluster, scheduler),
        METADATA: metadata_handler(storage, cluster),
        OFFSET_COMMIT: offset_commit_handler(groups),
        OFFSET_FETCH: offset_fetch_handler(storage, cluster),
        FIND_COORDINATOR: find_coordinator_handler(cluster),
        JOIN_GROUP: join_group_handler(groups),
        HEARTBEAT: heartbeat_handler(groups),
        LEAVE_GROUP: leave_group_handler(groups),
        SYNC_GROUP: sync_group_handler(groups),
        DESCRIBE_GROUPS: describe_groups_handler(groups),
        LIST_GROUPS: list_groups_handler(groups),
        CREATE_TOPICS: create_topics_handler(storage, cluster),
        DELETE_TOPICS: delete_topics_handler(storage),
        DELETE_RECORDS: delete_records_handler(storage, cluster),
        INIT_PRODUCER_ID: init_producer_id_handler(storage),
        DESCRIBE_CONFIGS: describe_configs_handler(storage, cluster, settings),
        DELETE_GROUPS: delete_groups_handler(groups),
        INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs_handler(storage, cluster, settings),
        OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch_handler(storage, cluster),
        ALTER_CONFIGS: alter_configs_handler(storage, cluster, settings),
        DESCRIBE_LOG_DIRS: describe_log_dirs_handler(storage, cluster),
        ELECT_LEADERS: elect_leaders_handler(storage),
        ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments_handler(storage, cluster),
        LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments_handler(),
        DESCRIBE_PRODUCERS: describe_producers_handler(storage, cluster),
        LIST_CONFIG_RESOURCES: list_config_resources_handler(storage, cluster),
        CREATE_PARTITIONS: create_partitions_handler(storage, cluster),
        OFFSET_DELETE: offset_delete_handler(groups),
        DESCRIBE_CLUSTER: describe_cluster_handler(storage, cluster),
        CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat_handler(),
        DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions_handler(storage, cluster),
    }
