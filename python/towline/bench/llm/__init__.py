"""Chats with a real endpoint, or with a local mock of one: what the users of a client feel.

`endpoint` is whom we ask, `mock` who answers when there is no key, `experiments` the scenarios, `figures` the arithmetic,
`run` does it, `main` is the command line.
"""
