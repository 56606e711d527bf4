"""Puts rules/ into the wheel as fp16conv/_rules.

A hook and not a static `force-include`: that one would also copy the rules into an editable install,
where the copy goes stale while the checkout's rules/ is what gets read.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RulesHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the rule data to standard wheels only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"]["rules"] = "fp16conv/_rules"
