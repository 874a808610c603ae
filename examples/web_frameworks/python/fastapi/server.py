"""The routes of the contract in FastAPI."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

app = FastAPI()


@app.get("/", response_class=PlainTextResponse)
async def index() -> str:
    return ""


@app.get("/user/{number}", response_class=PlainTextResponse)
async def user(number: int) -> str:
    return str(number)


@app.post("/user", response_class=PlainTextResponse)
async def create_user() -> str:
    return ""
