"""Arguments of the functions of `tidegate.pipeline` that name quotas: plans to replay, and levels of entities."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tidegate.config.quotas_file import QuotasFile, load_quotas_file
from tidegate.errors import ArgumentError, ConfigError
from tidegate.pipeline.arguments import Path_, local_path
from tidegate.pipeline.replay.levels import check_level
from tidegate.pipeline.replay.limits import levels_of, levels_of_file, levels_of_quotas
from tidegate.pipeline.replay.plan import IN_FORCE, Plan, load_plans, plan_of

__all__ = ["Quotas", "check_loop", "check_replay", "levels_given", "plans_of"]

Quotas: TypeAlias = Path_ | QuotasFile | Sequence[Path_] | Mapping[str, Path_ | QuotasFile]
"""Plans: a `quotas.yaml`, several of them (a plan has the name of its file), or files or quotas by name."""


def check_replay(
    plans: Sequence[Plan], loop: str, *, in_force: bool, decisions: bool, continue_from: Path_ | None
) -> None:
    """Check that the parameters of a replay agree. Raises `ConfigError`."""
    if not plans and not in_force:
        raise ConfigError("no quotas to replay", hint="give quotas, or in_force=True")
    if decisions and plans and loop == "closed":
        raise ConfigError(
            "decisions need loop='open': in closed loop, requests do not keep their recorded times",
            hint="give loop='open', or decisions=False",
        )
    if continue_from is not None and (loop == "closed" or not plans):
        raise ConfigError(
            "continue_from needs quotas and loop='open'",
            hint="the record contains the state of the quotas in force, and a forecast saves no state",
        )


def check_loop(loop: str) -> None:
    """Check when requests of a replay come. Raises `ArgumentError`."""
    if loop not in ("open", "closed"):
        raise ArgumentError(f"loop must be open or closed, got {loop!r}")


def plans_of(quotas: Quotas | None, *, is_closed: bool) -> list[Plan]:
    """Return the plans that a caller gave. Raises `ConfigError`."""
    if quotas is None:
        return []
    if isinstance(quotas, QuotasFile):
        quotas = {"quotas": quotas}
    if isinstance(quotas, Mapping):
        if IN_FORCE in quotas:
            raise ConfigError(f"no plan can have the name {IN_FORCE!r}", hint="give it another name")
        wrong = [name for name in quotas if not isinstance(name, str) or not name]
        if wrong:
            raise ArgumentError(f"the name of a plan must be a text, not empty, got {wrong[0]!r}")
        return [plan_of(name, _quotas(file), is_closed=is_closed) for name, file in quotas.items()]
    given: Iterable[Any] = quotas if isinstance(quotas, list | tuple) else [quotas]
    return load_plans([local_path(path, "quotas") for path in given], is_closed=is_closed)


def levels_given(by: str | None, quotas: Path_ | QuotasFile | None) -> Plan:
    """Return the plan that measures the entities of a level, or those that quotas make. Raises `ConfigError`."""
    check_level(by)
    if quotas is None:
        return levels_of(by or "both")
    if by is not None:
        raise ConfigError("by cannot be used with quotas", hint="give either by or quotas")
    if isinstance(quotas, QuotasFile):
        return levels_of_quotas(quotas, "quotas")
    return levels_of_file(local_path(quotas, "quotas"))


def _quotas(file: Path_ | QuotasFile) -> QuotasFile:
    return file if isinstance(file, QuotasFile) else load_quotas_file(local_path(file, "quotas"))
