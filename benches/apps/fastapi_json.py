"""FastAPI with JSON routes: a dict, a path parameter with a response model, a POST with a model, a list of 50 items."""

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class NewUser(BaseModel):
    name: str
    email: str
    age: int


class User(BaseModel):
    id: int
    name: str
    tags: list[str]


class Item(BaseModel):
    id: int
    name: str
    price: float
    in_stock: bool


ITEMS = [{"id": n, "name": f"item {n}", "price": n + 0.5, "in_stock": n % 3 > 0} for n in range(50)]


@app.get("/")
async def message():
    return {"message": "Hello, world!"}


@app.get("/users/{user_id}")
async def user(user_id: int) -> User:
    return User(id=user_id, name="Ada", tags=["first", "second"])


@app.post("/users")
async def add(new: NewUser) -> User:
    return User(id=1, name=new.name, tags=["new"])


@app.get("/items")
async def items() -> list[Item]:
    return [Item(**item) for item in ITEMS]
