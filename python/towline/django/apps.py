"""The app, and the check that its `runserver` is the one that Django finds."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.checks import Warning, register
from django.core.management import get_commands


class TowlineConfig(AppConfig):  # type: ignore[misc]
    name = "towline.django"
    label = "towline"  # the default, django, is a name that a project may have

    def ready(self) -> None:
        register(check_order)


def check_order(app_configs: Any, **options: Any) -> list[Any]:
    provider = get_commands().get("runserver")
    if provider == TowlineConfig.name:
        return []
    hint = f"Put {TowlineConfig.name!r} before {provider!r} in INSTALLED_APPS."
    return [Warning(f"runserver is that of {provider}, not of Towline.", hint=hint, id="towline.W001")]
