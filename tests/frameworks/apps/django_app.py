"""Django: the routes of the comparison, as ASGI and as WSGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIRequest
from django.core.wsgi import get_wsgi_application
from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
    JsonResponse,
    StreamingHttpResponse,
)
from django.urls import path

settings.configure(
    DEBUG=False, SECRET_KEY="only for tests", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, USE_TZ=True
)
django.setup()


def text(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello", content_type="text/plain", headers={"X-Mixed-Case": "Kept"})


def json(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"query": request.GET.dict(), "path": request.path, "scheme": request.scheme})


async def async_json(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0.001)
    return JsonResponse({"path": request.path})


def echo(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.body, content_type=request.content_type)


def form(request: HttpRequest) -> HttpResponse:
    files = {name: [f.name, f.size] for name, f in request.FILES.items()}
    return JsonResponse(request.POST.dict() | files)


def stream(request: HttpRequest) -> HttpResponse:
    async def later() -> AsyncIterator[bytes]:
        for number in range(5):
            yield f"piece {number}\n".encode()

    def now() -> Iterator[bytes]:
        for number in range(5):
            yield f"piece {number}\n".encode()

    pieces = later() if isinstance(request, ASGIRequest) else now()
    return StreamingHttpResponse(pieces, content_type="text/plain")


def file(request: HttpRequest) -> HttpResponse:
    return FileResponse(open(__file__, "rb"), content_type="text/plain")


def redirect(request: HttpRequest) -> HttpResponse:
    return HttpResponseRedirect("/text")


def cookies(request: HttpRequest) -> HttpResponse:
    response = JsonResponse(request.COOKIES)
    response.set_cookie("a", "1")
    response.set_cookie("b", "2")
    return response


def error(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("as asked")


VIEWS = [text, json, async_json, echo, form, stream, file, redirect, cookies, error]
urlpatterns = [path(view.__name__, view) for view in VIEWS]
urlpatterns.append(path("päth/ü", json))
asgi = get_asgi_application()
wsgi = get_wsgi_application()
