"""DescribeConfigs (key 32), versions 1-4. KIP-133, KIP-226 (synonyms), KIP-569 (types).

Topics (type 2) are described with every setting of Kafka's; those the log does not follow are in
`topic_configs.TOPIC_CONFIGS` but not in `EFFECTIVE`. The node (type 4) is described with the storage's settings.
Not implemented: other resources (error 42), documentation texts, settings of the server itself.
"""

import dataclasses

from tidegate.server.handler import Answer, Handler, Message, Request
from tidegate.storage import error_codes
from tidegate.storage.config import StorageConfig
from tidegate.storage.storage import Storage
from tidegate.storage.topic_configs import (
    DEFAULT_SOURCE,
    STATIC_SOURCE,
    ConfigType,
    DescribedConfig,
    described_configs,
)

__all__ = ["DESCRIBE_CONFIGS", "describe_configs_handler"]

DESCRIBE_CONFIGS = 32
TOPIC, NODE = 2, 4
_NOT_DESCRIBED = ("advertised", "kafka_exact")
_TYPES = {bool: ConfigType.BOOLEAN, int: ConfigType.INT, str: ConfigType.STRING}
_LONGS = frozenset(
    (
        "log_flush_interval_messages",
        "log_flush_interval_ms",
        "log_message_timestamp_after_max_ms",
        "log_retention_bytes",
        "log_retention_ms",
    )
)


def describe_configs_handler(storage: Storage) -> Handler:
    """Return the handler that describes topics and the node."""

    def handle(request: Request) -> Answer:
        body = request.body()
        results = [
            _describe(storage, resource, synonyms=body["include_synonyms"]) for resource in body["resources"]
        ]
        return request.answer({"throttle_time_ms": 0, "results": results})

    return handle


def _describe(storage: Storage, resource: Message, *, synonyms: bool) -> Message:
    kind, name = resource["resource_type"], resource["resource_name"]
    configs: list[DescribedConfig] = []
    error_code, text = error_codes.NONE, ""
    if kind == TOPIC:
        topic = storage.topics.by_name.get(name)
        if topic is None:
            error_code, text = error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} does not exist"
        else:
            configs = described_configs(topic.configs, storage.config)
    elif kind == NODE and name == str(storage.config.node_id):
        configs = _of_node(storage.config)
    elif kind == NODE:
        error_code = error_codes.INVALID_REQUEST
        text = f"Unexpected broker id, expected {storage.config.node_id} or empty string, but received {name}"
    else:
        error_code, text = error_codes.INVALID_REQUEST, f"Unsupported resource type: {kind}"
    wanted = resource["configuration_keys"]
    return {
        "error_code": error_code,
        "error_message": text,
        "resource_type": kind,
        "resource_name": name,
        "configs": [
            _message(config, synonyms=synonyms, read_only=kind == NODE)
            for config in configs
            if wanted is None or config.name in wanted
        ],
    }


def _of_node(config: StorageConfig) -> list[DescribedConfig]:
    described = []
    for field in dataclasses.fields(config):
        if field.name in _NOT_DESCRIBED:
            continue
        value = getattr(config, field.name)
        described.append(
            DescribedConfig(
                name=field.name.replace("_", "."),
                value=str(value).lower() if isinstance(value, bool) else str(value),
                source=DEFAULT_SOURCE if value == field.default else STATIC_SOURCE,
                type=ConfigType.LONG if field.name in _LONGS else _TYPES[type(value)],
            )
        )
    return described


def _message(config: DescribedConfig, *, synonyms: bool, read_only: bool) -> Message:
    own = [{"name": config.name, "value": config.value, "source": config.source}]
    return {
        "name": config.name,
        "value": config.value,
        "read_only": read_only,
        "config_source": config.source,
        "is_sensitive": False,
        "synonyms": own if synonyms else [],
        "config_type": int(config.type),
        "documentation": None,
    }
