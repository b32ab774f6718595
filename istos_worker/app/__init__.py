"""`App`: what a program declares (queues, handlers, tasks, schedules) and how it runs."""

from istos_worker.app.app import App
from istos_worker.app.declarations import HandlerDeclaration

__all__ = ["App", "HandlerDeclaration"]
