"""Views, asynchronous as Django's are under ASGI: a synchronous one would run in a thread."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET, require_POST


@require_GET
async def index(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@require_GET
async def user(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(str(number))


@require_POST
async def create_user(request: HttpRequest) -> HttpResponse:
    return HttpResponse()
