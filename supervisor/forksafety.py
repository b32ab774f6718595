"""What the application left behind at import that a fork breaks. Looks, names, changes nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading

_MAX_NAMED = 10


def findings(suspects: tuple[type, ...], *, own_fds: set[int]) -> list[str]:
    """One sentence per thread, loop, session and socket that is alive in this process."""
    return [*_threads(), *_native_threads(), *_objects(suspects, own_fds)]


def _threads() -> list[str]:
    frames = sys._current_frames()
    found = []
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            frame = frames.get(thread.ident or 0)
            where = f" in {frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
            target = getattr(thread, "_target", None)
            what = f" running {_qualified(target)}" if target is not None else ""
            found.append(f"thread {thread.name!r}{what}{where} will not exist in workers")
    return found[:_MAX_NAMED]


def _qualified(target: object) -> str:
    module, name = getattr(target, "__module__", "?"), getattr(target, "__qualname__", None)
    return f"{module}.{name}" if name is not None else type(target).__qualname__


def _native_threads() -> list[str]:
    try:
        natives = len(os.listdir("/proc/self/task")) - threading.active_count()
    except OSError:
        return []
    if natives <= 0:
        return []
    return [f"{natives} native threads, started by an extension module at import, will not exist in workers"]


def _objects(suspects: tuple[type, ...], own_fds: set[int]) -> list[str]:
    found = []
    for thing in gc.get_objects():
        kind = type(thing)  # not isinstance: a lazy proxy would run the application's code
        if issubclass(kind, socket.socket):
            if thing.fileno() >= 0 and thing.fileno() not in own_fds:
                found.append(f"open socket {_addresses(thing)}{_holder(thing)} is shared by all workers")
        elif issubclass(kind, asyncio.AbstractEventLoop):
            if not thing.is_closed():
                found.append(f"event loop {kind.__qualname__}{_holder(thing)} cannot be used in workers")
        elif suspects and issubclass(kind, suspects):
            found.append(f"{kind.__module__}.{kind.__qualname__}{_holder(thing)} cannot be used in workers")
    return found[:_MAX_NAMED]


def _addresses(sock: socket.socket) -> str:
    names = []
    for ask in (sock.getsockname, sock.getpeername):
        try:
            names.append(str(ask()))
        except OSError:
            continue
    return " to ".join(names) or f"descriptor {sock.fileno()}"


def _holder(thing: object) -> str:
    """The module variable that holds it, directly or as an attribute of what it holds."""
    for module_name, module in list(sys.modules.items()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is thing or _has_attribute(value, thing):
                return f" (held by {module_name}.{name})"
    return ""


def _has_attribute(value: object, thing: object) -> bool:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return False
    return isinstance(attributes, dict) and any(held is thing for held in attributes.values())
