"""`towline bench URL URL`, `--app`, `--command`, `--git`: compares the servers of one command line.

`options` has the options, `subjects` makes subjects of them, `requests` the scenario, `run` measures both with the runner.
"""
