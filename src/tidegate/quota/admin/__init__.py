"""Quota definitions: entities, keys, alterations and descriptions, and how names are written."""
