"""Agents of `towline load` on the machines of a cluster: Dask, Ray and Kubernetes start them, the native controller leads
them.

    towline load --cluster dask://..., ray://...          towline load --kubernetes N
          │ placement: a task on each node                      │ placement: a Job of N pods
          ▼                                                     ▼
    towline load --agent --connect ADDRESS                `kubectl attach -i POD`
          └──── a socket with the agent's lines ─── _native.load_main(["--agent-sockets", "NAME=FD,..."])

The engine decides where an agent runs and ends it; everything that is about load is in crates/towline-load/src/hosts.
"""
