"""From `module` or `module:attr` to the App it names. Imports the application, so it is called only in processes
that may run the user's code: the zygote, the owner, `--solo`, `--check`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from istos_worker.app import App


class TargetError(Exception):
    """The target cannot be used; the message says what to do. The user's code is not to blame with a traceback."""


class LoadRefused(Exception):  # noqa: N818 - what is to be printed, complete
    """The application cannot be used. The text is for people: one line of ours, or a traceback of theirs."""


@contextlib.contextmanager
def loading(targets: Sequence[str]) -> Iterator[None]:
    """Whatever goes wrong with the targets until the end of the block is LoadRefused."""
    try:
        yield
    except TargetError as useless:
        raise LoadRefused(str(useless)) from useless
    except BaseException as failure:  # the application's code: even a SystemExit is its failure to load
        raise LoadRefused(f"{', '.join(targets)} failed to import\n{user_traceback(failure)}") from failure


def load_apps(targets: Sequence[str]) -> list[App]:
    """The apps, each once, in order. Raises TargetError, or whatever the application raised while importing."""
    put_current_directory_first()
    apps: list[App] = []
    for target in targets:
        app = _load_app(target)
        if all(app is not known for known in apps):
            apps.append(app)
    return apps


def _load_app(target: str) -> App:
    module_name, colon, attribute = target.partition(":")
    if not module_name or (colon and not attribute):
        raise TargetError(f"{target!r} is not a target: write module or module:attribute")
    module = _import(module_name, target)
    return _named_app(module, attribute, target) if attribute else _only_app(module, target)


def user_traceback(error: BaseException) -> str:
    """The traceback from the first frame that is the application's: ours and the import machinery's say nothing
    about its mistake."""
    summary = traceback.TracebackException.from_exception(error)
    frames = list(summary.stack)
    while frames and _is_ours(frames[0].filename):
        frames.pop(0)
    summary.stack = traceback.StackSummary.from_list(frames)
    return "".join(summary.format()).rstrip()


_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


def _is_ours(filename: str) -> bool:
    return filename.startswith((_OURS, "<frozen ")) or f"{os.sep}importlib{os.sep}" in filename


def put_current_directory_first() -> None:
    """As `python -m` does; a console script has its own folder there instead."""
    here = os.getcwd()
    if "" not in sys.path[:1] and here not in sys.path[:1]:
        sys.path.insert(0, here)


def _import(name: str, target: str) -> ModuleType:
    if name.startswith(".") or "/" in name:
        raise TargetError(f"{target!r} is not a target: write module or module:attribute{_hint(name)}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        # Only if the target itself is missing: a module that it imports is the application's own failure.
        if missing.name is not None and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise TargetError(
                f"cannot import {target!r}: no module named {missing.name!r} in {os.getcwd()} "
                f"or on sys.path{_hint(name)}"
            ) from None
        raise


def _hint(name: str) -> str:
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        return f" (a target is a module, not a file: try {dotted})"
    return ""


def _named_app(module: ModuleType, attribute: str, target: str) -> App:
    from istos_worker.app import App

    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise TargetError(
                f"{target!r}: {module.__name__} has no attribute {attribute!r}{_those_there(module)}"
            )
        found = getattr(found, part)
    if not isinstance(found, App):
        raise TargetError(f"{target!r} is a {type(found).__name__}, not an App")
    return found


def _only_app(module: ModuleType, target: str) -> App:
    apps = _apps_of(module)
    if not apps:
        raise TargetError(f"{target!r} has no App: create one at module level, app = App()")
    distinct = {id(app): app for app in apps.values()}
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    raise TargetError(f"{target!r} has several Apps: say which, {_choices(module, apps)}")


def _apps_of(module: ModuleType) -> dict[str, App]:
    from istos_worker.app import App

    return {name: value for name, value in vars(module).items() if isinstance(value, App)}


def _those_there(module: ModuleType) -> str:
    apps = _apps_of(module)
    return f"; it has {_choices(module, apps)}" if apps else ""


def _choices(module: ModuleType, apps: dict[str, App]) -> str:
    return " or ".join(f"{module.__name__}:{name}" for name in sorted(apps))
