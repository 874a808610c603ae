"""The environment variable through which a server names its store to its workers and their children."""

STATE_VARIABLE = "TOWLINE_STATE"
