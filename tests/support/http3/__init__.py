"""Independent ends of HTTP/3 for tests: aioquic, qh3, quic-go and other servers, and a proxy of datagrams.

- `client`: blocking client on aioquic or qh3, stream by stream.
- `server`: server on aioquic, in a thread or as a program.
- `datagram_proxy`: UDP proxy that loses datagrams, falls silent, or changes its address (NAT rebinding).
- `servers`: servers of other projects as processes, and ours.
"""
