"""Running the bench: the experiments, their order, and when to stop. One loop for servers and clients."""
