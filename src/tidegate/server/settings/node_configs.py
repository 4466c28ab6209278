"""The settings of several nodes in one process, made from those of one.

Node k (from 0) has the id `node.id` + k, and each of its listeners the port that is given + k times the number of
listeners: with one listener ports follow each other. Its metrics have the port that is given + k. Port 0 stays 0: any
free one. All else is as given.

>>> config = ServerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:9092"})
>>> [(node["node.id"], node.listeners[0].address.port) for node in node_configs(config, 3)]
[(1, 9092), (2, 9093), (3, 9094)]
"""

import re
from dataclasses import replace

from tidegate.errors import ConfigError
from tidegate.server.settings.config import ServerConfig, request_memory_bytes
from tidegate.server.settings.metrics_settings import METRICS_LISTENER
from tidegate.server.settings.table import SETTINGS

__all__ = ["MAX_NODES", "node_configs"]

MAX_NODES = 16
"""Nodes of a process: each has a process for its usage record."""

_MEMORY = "queued.max.request.bytes"


def node_configs(config: ServerConfig, count: int) -> list[ServerConfig]:
    """Return the settings of `count` nodes, the first those of `config`.

    Memory for requests is that of one node in equal parts, where it is not set. Raises `ConfigError`.
    """
    if not 1 <= count <= MAX_NODES:
        raise ConfigError(f"--nodes is {count}, expected 1 to {MAX_NODES}")
    if count == 1:
        return [config]
    memory_bytes = request_memory_bytes(config)
    if config[_MEMORY] == SETTINGS[_MEMORY].default:
        memory_bytes //= count
    configs = []
    for number in range(count):
        texts = {**config.given, "node.id": str(config["node.id"] + number)}
        for name in ("listeners", "advertised.listeners"):
            if config[name]:
                texts[name] = _shifted(config[name], number * len(config.listeners))
        if config[METRICS_LISTENER]:
            texts[METRICS_LISTENER] = _shifted(config[METRICS_LISTENER], number)
        made = ServerConfig.load(texts)
        configs.append(replace(made, values={**made.values, _MEMORY: memory_bytes}))
    return configs


def _shifted(listeners: str, by: int) -> str:
    """Return listeners with ports that are so much higher, but for those that may have any."""

    def shift(port: re.Match[str]) -> str:
        return f":{int(port[1]) + by}" if int(port[1]) else port[0]

    return ",".join(re.sub(r":(\d+)\s*$", shift, part) for part in listeners.split(","))
