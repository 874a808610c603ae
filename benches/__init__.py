"""Towline against its peers: separate processes, one core each, the same requests. `make bench`."""
