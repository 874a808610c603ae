"""Clients as subjects: each library in a process of its own, controlled over stdio.

`subjects` lists the clients, `process` runs one of them, `measure` implements the runner's protocol. `worker` is the
process's side: it is loaded in the subject's interpreter under a name of its own and imports nothing of Towline.
"""
