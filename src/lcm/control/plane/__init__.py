"""The plane: the protocol, its implementation in process, and its client over HTTP."""
