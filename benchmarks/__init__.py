"""Speed and memory beside what a user would pick instead: `python -m benchmarks` (see README.md).

This package's `apps` run in the peers' own environments, so nothing here imports the product at this level.
"""
