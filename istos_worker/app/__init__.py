"""`App`: what a program declares (queues, handlers, tasks, schedules) and how it runs."""

from istos_worker.app.app import App

__all__ = ["App"]
