"""Answers of DescribeConfigs for each kind of resource: settings, their sources and their documentation."""
