"""Processes: spawn, watch, replace, reload, stop. Knows nothing of jobs."""
