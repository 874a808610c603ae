"""Chats with a real endpoint, or with a local imitation of one: what the users of a client feel.

`endpoint` is whom we ask, `imitation` who answers when there is no key, `cells` the scenarios, `figures` the arithmetic,
`run` does it, `main` is the command line.
"""
