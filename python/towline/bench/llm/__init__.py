"""Chats with a language model endpoint, or with a local mock of one: latencies for the users of a client.

`endpoint` selects the endpoint, `mock_endpoint` is used when there is no key, `llm_experiments` has the scenarios,
`metrics` the arithmetic, `run` the measurement, `main` the command line.
"""
