"""Every client behind the same small face, so that a load is written once.

An adapter does what the client's own users would write, and no more: the whole answer as bytes, JSON
through the client's own encoder and decoder, streams in the client's own way.
"""
