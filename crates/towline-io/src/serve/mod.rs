//! What a server adds to the wire: files, compression, logs, metrics and the addresses behind a proxy.
