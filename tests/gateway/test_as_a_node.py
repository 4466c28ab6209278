"""Quotas and bad frames at a gateway before Kafka: clients see what they see at a node.

These are tests of `tests/e2e`, with a gateway in the place of the node.
"""

from tests.e2e.test_aiokafka import test_topics_come_and_go as test_aiokafka_manages_topics
from tests.e2e.test_aiokafka import test_what_is_produced_is_consumed as test_aiokafka_round_trip
from tests.e2e.test_confluent_kafka import (
    test_an_idempotent_producer_works,
    test_offsets_by_position_and_by_time,
    test_partitions_hold_what_was_sent_to_them,
)
from tests.e2e.test_hostile import (
    test_a_bad_frame_closes_only_its_connection,
    test_a_client_that_leaves_while_muted_is_noticed,
    test_bad_frames_of_one_address_are_counted,
    test_many_half_open_frames_do_not_stop_the_others,
)
from tests.e2e.test_java import test_producer_performance, test_topic_command
from tests.e2e.test_kafka_python import test_what_is_produced_is_consumed as test_kafka_python_round_trip
from tests.e2e.test_kcat import test_the_listing_names_broker_and_topic
from tests.e2e.test_kcat import test_what_is_produced_is_consumed as test_kcat_round_trip
from tests.e2e.test_throttle import (
    test_a_produce_is_answered_at_once_and_its_connection_is_deaf,
    test_a_throttled_fetch_is_empty_and_the_next_has_the_records,
    test_acks_0_is_muted_too,
    test_kafka_python_reports_the_throttle_time,
    test_librdkafka_reports_the_throttle_time,
    test_partition_mutations_are_refused_with_89,
    test_the_most_specific_quota_applies,
)

__all__ = [
    "test_a_bad_frame_closes_only_its_connection",
    "test_a_client_that_leaves_while_muted_is_noticed",
    "test_a_produce_is_answered_at_once_and_its_connection_is_deaf",
    "test_a_throttled_fetch_is_empty_and_the_next_has_the_records",
    "test_acks_0_is_muted_too",
    "test_aiokafka_manages_topics",
    "test_aiokafka_round_trip",
    "test_an_idempotent_producer_works",
    "test_bad_frames_of_one_address_are_counted",
    "test_kafka_python_reports_the_throttle_time",
    "test_kafka_python_round_trip",
    "test_kcat_round_trip",
    "test_librdkafka_reports_the_throttle_time",
    "test_many_half_open_frames_do_not_stop_the_others",
    "test_offsets_by_position_and_by_time",
    "test_partition_mutations_are_refused_with_89",
    "test_partitions_hold_what_was_sent_to_them",
    "test_producer_performance",
    "test_the_listing_names_broker_and_topic",
    "test_the_most_specific_quota_applies",
    "test_topic_command",
]
