"""Server on quic-go, compiled from `main.go` with the machine's Go: `python -m towline.bench.subjects.quic_go ADDRESS
CERT KEY`."""
