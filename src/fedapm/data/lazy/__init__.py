"""Clients whose samples are read when they are needed, a cache of them, and where they come from."""
