//! Clocks of a connection, driven by the instants it is given.
