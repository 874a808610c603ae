"""The applications that servers under measurement run: `asgi.py` and `wsgi.py`.

Each is one file of the standard library alone, loaded by its path: a peer's process imports nothing of Towline.
"""
