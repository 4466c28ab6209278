"""Effects of planned quotas on consumer groups (decision 0137)."""

from tidegate.cli.quota_effects.effects import QuotaEffects, find_effects
from tidegate.cli.quota_effects.limits import QuotaEffect

__all__ = ["QuotaEffect", "QuotaEffects", "find_effects"]
