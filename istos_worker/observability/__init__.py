"""Logs, metrics, traces, dashboard."""
