"""Litestar with one JSON route."""

from litestar import Litestar, get


@get("/")
async def message() -> dict[str, str]:
    return {"message": "Hello, world!"}


app = Litestar([message], openapi_config=None)
