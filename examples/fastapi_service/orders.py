"""A FastAPI service that calls another service, with its tests in test_orders.py.

    towline serve orders:create_app --factory --app-dir examples/fastapi_service --workers 2
    pytest examples/fastapi_service

`POST /orders` asks the catalogue for the price of an item and stores the order. A client that repeats a request, with the same
`Idempotency-Key`, gets the same order. Workers share orders, keys and rate limits through `towline.state`.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import quote

import towline
import towline.state
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, Field, ValidationError
from towline.state.adapters.starlette import IdempotencyMiddleware, RateLimit


@dataclass(frozen=True)
class Settings:
    catalogue: str = "http://127.0.0.1:9000"
    catalogue_timeout: float = 2.0
    """Seconds for an attempt; an order needs the price, so that the client waits as well."""
    state: str | None = None
    """By default the store of the server."""
    orders_per_minute: int = 60
    """Orders that one client address may place."""

    @classmethod
    def from_environment(cls) -> Settings:
        return cls(catalogue=os.environ.get("CATALOGUE", cls.catalogue), state=os.environ.get("STATE"))


class Item(BaseModel):
    """The response of the catalogue to `GET /items/NAME`."""

    name: str
    price: Decimal = Field(gt=0)


class NewOrder(BaseModel):
    item: str = Field(min_length=1, max_length=100)
    quantity: int = Field(ge=1, le=1000)


class Order(NewOrder):
    id: str
    total: Decimal


class Orders:
    """The application's logic: a client of the catalogue, and the store."""

    def __init__(self, catalogue: towline.AsyncClient, state: towline.state.AsyncState[Any]) -> None:
        self._catalogue = catalogue
        self._state = state

    async def create(self, new: NewOrder) -> Order:
        item = await self._item(new.item)
        order = Order(**new.model_dump(), id=uuid.uuid4().hex, total=item.price * new.quantity)
        await self._state.set(f"order/{order.id}", order.model_dump(mode="json"), ttl=30 * 24 * 3600)
        return order

    async def find(self, order_id: str) -> Order:
        found = await self._state.get(f"order/{order_id}")
        if found is None:
            raise HTTPException(404, "no such order")
        return Order.model_validate(found)

    async def _item(self, name: str) -> Item:
        """Asks the catalogue. Its failures are not the client's: 503, which may be tried again."""
        try:
            response = await self._catalogue.get(f"/items/{quote(name, safe='')}")
            if response.status_code == 404:
                raise HTTPException(422, f"there is no {name}")
            return Item.model_validate(response.raise_for_status().json())
        except (towline.TransportError, towline.ResponseError, ValidationError) as error:
            raise HTTPException(503, "the catalogue does not respond", {"retry-after": "5"}) from error


async def orders_of(request: Request) -> Orders:
    orders: Orders = request.app.state.orders
    return orders


OrdersOfApp = Annotated[Orders, Depends(orders_of)]


def create_app(settings: Settings | None = None, transport: Any = None) -> FastAPI:
    """The application. `transport`: replaces the network below the client of the catalogue, for tests."""
    settings = settings or Settings.from_environment()
    state = towline.state.open_async(settings.state, namespace="orders")

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            state,
            towline.AsyncClient(
                base_url=settings.catalogue,
                timeout=towline.Timeout(
                    connect=1.0, read=settings.catalogue_timeout, total=3 * settings.catalogue_timeout
                ),
                # GET is idempotent: a catalogue that is being restarted costs an order some milliseconds.
                retries=towline.Retry(
                    status=(502, 503, 504), times=2, backoff=0.1, max_delay=1.0, budget=0.1
                ),
                limits=towline.Limits(max_connections_per_host=50, max_queue=200),
                max_response_size=1 << 20,
                transport=transport,
            ) as catalogue,
        ):
            app.state.orders = Orders(catalogue, state)
            yield

    app = FastAPI(title="Orders", lifespan=lifespan)
    app.add_middleware(IdempotencyMiddleware, ttl=24 * 3600, state=state)
    limit = RateLimit(settings.orders_per_minute, 60, name="orders", state=state)

    @app.post("/orders", status_code=201, dependencies=[Depends(limit)])
    async def create(new: NewOrder, orders: OrdersOfApp) -> Order:
        return await orders.create(new)

    @app.get("/orders/{order_id}")
    async def find(order_id: str, orders: OrdersOfApp) -> Order:
        return await orders.find(order_id)

    return app
