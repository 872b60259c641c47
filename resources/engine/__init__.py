"""Builds and runs engines, proved or not.

Contract: an engine is a directory (`config`), written by `build`, run by `backend.Engine` on one of the backends.
Nothing here knows what has been proved of an engine: users open one through `resources.proof.load`.
"""
