"""The commands of `fabric`: a module each, or one for those that belong together, and what only they need.

`plan`, `trace` and `worker` are what a terminal sees of `planning`, `tracing` and `serving`.
"""
