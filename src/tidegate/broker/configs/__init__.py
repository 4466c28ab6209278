"""What DescribeConfigs answers for each kind of resource: its settings, where they come from, and what they mean."""

from tidegate.broker.configs.descriptions import ConfigDescriptions, DescribedSettings, Detail

__all__ = ["ConfigDescriptions", "DescribedSettings", "Detail"]
