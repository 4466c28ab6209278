"""The settings of a node that hold for topics without their own, as they are changed while the broker runs.

Follows: Kafka `DynamicLogConfig`, `DynamicProducerStateManagerConfig`, `AbstractKafkaConfig`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tidegate.storage.topics.config_synonyms import MIN_INSYNC_REPLICAS, TOPIC_SYNONYMS
from tidegate.storage.topics.topic_configs import TOPIC_CONFIGS, ConfigType, TopicConfig, value_problem

__all__ = ["TOPIC_DEFAULTS", "TopicDefaults"]

_PRODUCER_IDS = "producer.id.expiration.ms"
_REQUIREMENTS = {
    "log.retention.ms": "must be unlimited (-1) or, greater than or equal to 1",
    "log.roll.jitter.ms": "must be greater than or equal to 0",
    "log.roll.ms": "must be greater than or equal to 1",
}
"""Kafka's ends of sentences for numbers that are too small, where it has others for nodes than for topics."""


def _config(name: str, topic_name: str) -> TopicConfig:
    config = replace(TOPIC_CONFIGS[topic_name], name=name)
    return replace(config, least=None) if name in _REQUIREMENTS else config


_CONFIGS: Mapping[str, TopicConfig] = {
    _PRODUCER_IDS: TopicConfig(name=_PRODUCER_IDS, type=ConfigType.INT, default="86400000", least=1),
    **{
        names[0]: _config(names[0], topic_name)
        for topic_name, names in TOPIC_SYNONYMS.items()
        if names[0] != MIN_INSYNC_REPLICAS
    },
}


class TopicDefaults:
    """Names and value checks of these settings, without a storage."""

    names: Final = frozenset(_CONFIGS)
    lists: Final[Mapping[str, str]] = {
        name: config.default for name, config in _CONFIGS.items() if config.type is ConfigType.LIST
    }

    def problem(self, name: str, text: str) -> str | None:
        """Return what Kafka says is wrong with a value of a node's setting, None where nothing is.

        >>> TOPIC_DEFAULTS.problem("log.roll.ms", "0")
        'requirement failed: log.roll.ms must be greater than or equal to 1'
        """
        problem = value_problem(_CONFIGS[name], text)
        if problem is not None or name not in _REQUIREMENTS:
            return problem
        number = int(text)
        least = 0 if name == "log.roll.jitter.ms" else 1
        is_unlimited = name == "log.retention.ms" and number == -1
        return (
            None if number >= least or is_unlimited else f"requirement failed: {name} {_REQUIREMENTS[name]}"
        )


TOPIC_DEFAULTS = TopicDefaults()
