"""The state where frameworks and libraries expect one: limits, caches, message buses. Each module needs its library.

- `starlette`: rate limits and idempotency keys, as middleware for any ASGI application, and as a dependency of FastAPI
- `django`: a cache back end
- `socketio`: managers of python-socketio and Flask-SocketIO
- `broadcaster`: a back end
- `limits`: storages of `limits` and so of Flask-Limiter
"""
