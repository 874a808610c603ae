"""Clients as subjects: each library in a process of its own, told over stdio when to run a slice.

`subjects` says who there is, `process` holds one of them, `measure` is what the runner drives. `worker` is the
other side: it is loaded in the subject's interpreter under a name of its own and imports nothing of Towline's.
"""
