"""Peers, servers, clients and processes that several test folders use."""
