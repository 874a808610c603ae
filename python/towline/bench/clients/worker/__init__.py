"""The subject's process: adapters, loads and the RPC over stdio.

Started by path in any interpreter (`python .../clients/worker`), this package is loaded there as
`towline_bench_worker`. It imports the standard library, itself and the library that is measured: the environment
decides which `towline` is measured, if any.
"""
