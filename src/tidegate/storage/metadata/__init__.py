"""The metadata database: topics, quotas, ACLs and credentials in SQLite."""
