"""What of the recordings our broker answers otherwise, and why: the one list of it.

`NOT_PLAYED`: file → reason → names of scenarios. A reason is an API that is not served yet, or the row of
`docs/kafka-differences.md` that says what differs. `name:1,4` means that only those steps differ and all others are
compared. Without steps a scenario is compared up to the API that is missing, and goes another way from there, or as a
whole where the reason is a row. `test_recordings.py` holds the list in both directions.
"""

from collections.abc import Mapping

__all__ = ["NOT_PLAYED", "NOT_SERVED", "OWN_TEXTS"]

_APIS = """
    AddOffsetsToTxn AddPartitionsToTxn AddRaftVoter
    AlterReplicaLogDirs AlterShareGroupOffsets ConsumerGroupDescribe
    CreateDelegationToken DeleteShareGroupOffsets DeleteShareGroupState
    DescribeDelegationToken DescribeQuorum DescribeShareGroupOffsets
    DescribeTransactions EndTxn ExpireDelegationToken
    GetTelemetrySubscriptions InitializeShareGroupState
    ListTransactions PushTelemetry ReadShareGroupState ReadShareGroupStateSummary
    RemoveRaftVoter RenewDelegationToken ShareAcknowledge ShareFetch
    ShareGroupDescribe ShareGroupHeartbeat StreamsGroupDescribe StreamsGroupHeartbeat TxnOffsetCommit
    UnregisterBroker UpdateFeatures WriteShareGroupState WriteTxnMarkers
"""
NOT_SERVED = frozenset(_APIS.split())
"""The APIs that the protocol has and the broker does not serve; left out of recorded ApiVersions answers (row S5)."""

OWN_TEXTS: Mapping[str, tuple[str, ...]] = {"DescribeConfigs": ("results.*.configs.*.documentation",)}
"""Where a text is there when Kafka has one, in other words (row D1)."""

NOT_PLAYED: Mapping[str, Mapping[str, str]] = {
    "apis": {
        "AddPartitionsToTxn": "add-partitions-to-txn-nothing",
        "AddRaftVoter": "add-raft-voter-v0 add-raft-voter-v1",
        "AlterReplicaLogDirs": "alter-replica-log-dirs-v1 alter-replica-log-dirs-v2",
        "CreateDelegationToken": "create-delegation-token-v1 create-delegation-token-v3",
        "DescribeDelegationToken": "describe-delegation-token-v1 describe-delegation-token-v3",
        "DescribeQuorum": "describe-quorum-v0 describe-quorum-v2",
        "ExpireDelegationToken": "expire-delegation-token-v1 expire-delegation-token-v2",
        "InitializeShareGroupState": "share-group-state-v0 share-group-state-v1",
        "L6": """
            coordinators-ready:6 find-coordinator-v1:1 find-coordinator-v3:1 find-coordinator-v4:1
            init-producer-id-v0:1,2 init-producer-id-v1:1,2 init-producer-id-v3:1,2
            init-producer-id-v4:1,2 init-producer-id-v5:1,2 add-partitions-to-txn-v0 end-txn-v0
            txn-offset-commit-v0 add-offsets-to-txn-v0 add-partitions-to-txn-v1 end-txn-v1
            txn-offset-commit-v1 add-offsets-to-txn-v1 end-txn-v2 txn-offset-commit-v2
            add-partitions-to-txn-v3 add-offsets-to-txn-v3 add-partitions-to-txn-v4 end-txn-v4
            txn-offset-commit-v4 add-offsets-to-txn-v4 add-partitions-to-txn-v5 end-txn-v5
            txn-offset-commit-v5 describe-transactions-v0 list-transactions-v0 list-transactions-v2
        """,
        "RemoveRaftVoter": "remove-raft-voter-v0",
        "RenewDelegationToken": "renew-delegation-token-v1 renew-delegation-token-v2",
        "S7": "find-coordinator-v6:1,4 consumer-group-heartbeat-v0 consumer-group-heartbeat-v1",
        "ShareGroupHeartbeat": "share-group-v1 share-group-v2",
        "StreamsGroupHeartbeat": "streams-group-v0",
        "UnregisterBroker": "unregister-broker-v0",
        "UpdateFeatures": "update-features-v0 update-features-v2",
        "WriteTxnMarkers": "write-txn-markers-v1 write-txn-markers-v2",
    },
    "compaction": {"L13": "compacted-topic:2,5,8"},
    "configs": {
        "D4": "incremental-alter-client-metrics-bad incremental-alter-group list-config-resources",
    },
    "frames": {
        "L19": """
            frame-trailing-bytes:0 frame-unknown-header-tags:0 frame-unknown-body-tags:0
            frame-client-id-not-utf8:0 frame-in-pieces:2 pipelined-in-order:6,7,8,9,10,11
            frame-close-in-the-middle:0 correlation-ids:0,1,2,3
        """,
    },
    "request_throttle": {
        "AddPartitionsToTxn": "request-quota-add_partitions_to_txn",
        "AddRaftVoter": "request-quota-add_raft_voter",
        "AlterReplicaLogDirs": "request-quota-alter_replica_log_dirs",
        "CreateDelegationToken": "request-quota-create_delegation_token",
        "DeleteShareGroupOffsets": "request-quota-delete_share_group_offsets",
        "DescribeDelegationToken": "request-quota-describe_delegation_token",
        "DescribeShareGroupOffsets": "request-quota-describe_share_group_offsets",
        "DescribeTransactions": "request-quota-describe_transactions",
        "EndTxn": "request-quota-end_txn",
        "ExpireDelegationToken": "request-quota-expire_delegation_token",
        "L16": "request-quota-init_producer_id:1",
        "L6": "coordinators-ready:4",
        "ReadShareGroupState": "request-quota-read_share_group_state",
        "RemoveRaftVoter": "request-quota-remove_raft_voter",
        "S7": "request-quota-consumer_group_heartbeat:1,2",
        "ShareAcknowledge": "request-quota-share_acknowledge",
        "ShareFetch": "request-quota-share_fetch",
        "ShareGroupDescribe": "request-quota-share_group_describe",
        "ShareGroupHeartbeat": "request-quota-share_group_heartbeat",
        "TxnOffsetCommit": "request-quota-txn_offset_commit",
        "UnregisterBroker": "request-quota-unregister_broker",
        "UpdateFeatures": "request-quota-update_features",
        "WriteTxnMarkers": "request-quota-write_txn_markers request-quota-exempt",
    },
    "sasl": {
        "CreateDelegationToken": "delegation-token-v1 delegation-token-v3",
        "U10": "denied-describe-all-scram-users",
        "UpdateFeatures": "denied-update_features-v1",
        "WriteTxnMarkers": "denied-write_txn_markers-v1",
    },
    "windows_1x1": {"L19": "request-quota-cap:1"},
    "windows_2x5": {"L19": "request-quota-cap:1"},
    "windows_3x2": {"L19": "request-quota-cap:1"},
}
