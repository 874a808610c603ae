"""Starlette with one JSON route."""

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


async def message(request):
    return JSONResponse({"message": "Hello, world!"})


app = Starlette(routes=[Route("/", message)])
