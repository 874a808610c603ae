"""FastAPI with one JSON route."""

from fastapi import FastAPI

app = FastAPI()


@app.get("/")
async def message():
    return {"message": "Hello, world!"}
