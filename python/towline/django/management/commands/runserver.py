"""`manage.py runserver` on Towline: Django's own command with another server, and with ASGI_APPLICATION if it is set."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ...._version import __version__
from ...server import DevelopmentServer

if apps.is_installed("django.contrib.staticfiles"):
    from django.contrib.staticfiles.management.commands.runserver import Command as DjangosCommand
else:
    from django.core.management.commands.runserver import Command as DjangosCommand


class Command(DjangosCommand):  # type: ignore[misc]
    help = f"{DjangosCommand.help.rstrip('.')}, on Towline."
    server_cls = DevelopmentServer

    def get_handler(self, *args: Any, **options: Any) -> Any:
        """The application of ASGI_APPLICATION, else of WSGI_APPLICATION, with the static files of Django."""
        name = getattr(settings, "ASGI_APPLICATION", None)
        self.stdout.write(f"Towline {__version__} serves {'ASGI' if name else 'WSGI'}.\n")
        if not name:
            return super().get_handler(*args, **options)
        try:
            handler = import_string(name)
        except ImportError as error:
            raise ImproperlyConfigured(f"ASGI_APPLICATION: cannot import {name}: {error}") from error
        if options.get("use_static_handler") and (settings.DEBUG or options["insecure_serving"]):
            from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler

            return ASGIStaticFilesHandler(handler)
        return handler
