"""The client measured against its peers: `make bench-client`, or `python -m benches.client --help`."""
