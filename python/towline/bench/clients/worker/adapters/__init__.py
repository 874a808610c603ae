"""A common interface of all clients, so that each load is written once.

An adapter does what users of the client would write: the whole response as bytes, JSON through the client's own
encoder and decoder, streams in the client's own way.
"""
