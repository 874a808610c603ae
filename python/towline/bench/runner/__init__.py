"""Running a bench: what is measured, in which order, and when it is enough. One loop for servers and clients."""
