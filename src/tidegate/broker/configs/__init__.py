"""Answers of DescribeConfigs for each kind of resource: settings, their sources and their documentation."""

from tidegate.broker.configs.descriptions import ConfigDescriptions, DescribedSettings, Detail

__all__ = ["ConfigDescriptions", "DescribedSettings", "Detail"]
