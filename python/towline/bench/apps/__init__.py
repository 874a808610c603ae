"""The applications that servers under measurement run: `asgi.py` and `wsgi.py`.

Each is one file that needs the standard library only and is loaded by its path: other servers' processes import
nothing of Towline.
"""
