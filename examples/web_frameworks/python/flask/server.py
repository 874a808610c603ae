"""The routes of the contract in Flask."""

from __future__ import annotations

from flask import Flask

app = Flask(__name__)


@app.get("/")
def index() -> str:
    return ""


@app.get("/user/<int:number>")
def user(number: int) -> str:
    return str(number)


@app.post("/user")
def create_user() -> str:
    return ""
