"""What runs in a subject's process: adapters, loads and the talk over stdio.

Started by path in any interpreter (`python .../clients/worker`), this package is loaded there as
`towline_bench_worker`. It imports the standard library, itself and the one library that is measured: which
`towline` is measured, or whether there is one at all, is the environment's matter.
"""
