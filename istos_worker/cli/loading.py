"""Targets for the commands: `load_apps(["module:attr", ...])`. It imports the application and with it zenoh, so
import this module only where that is wanted, never in the supervisor's process."""

from istos_worker.fleet.target import TargetError, load_app, load_apps

__all__ = ["TargetError", "load_app", "load_apps"]
