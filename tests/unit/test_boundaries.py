"""Each layer imports only what is below it (ARCHITECTURE.md, "The house")."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

PURE, BASE, ROLES, APP, FLEET, CLI = range(6)
LAYERS = {
    "istos_worker": PURE,  # looks its names up lazily
    "istos_worker.errors": PURE,
    "istos_worker.context": PURE,
    "istos_worker.serialization": PURE,
    "istos_worker.storage.protocol": PURE,
    "istos_worker.queue": PURE,
    "istos_worker.queue.declared": BASE,
    "istos_worker.queue.engine": BASE,
    "istos_worker.queue.store": BASE,
    "istos_worker.queue.role": ROLES,
    "istos_worker.queue.verbs": ROLES,
    "istos_worker.storage": BASE,
    "istos_worker.wire": BASE,
    "istos_worker.wire.codec": PURE,
    "istos_worker.wire.envelope": PURE,
    "istos_worker.wire.keys": PURE,
    "istos_worker.wire.limits": PURE,
    "istos_worker.worker": ROLES,
    "istos_worker.client": ROLES,
    "istos_worker.scheduling": APP,
    "istos_worker.app": APP,
    "istos_worker.task": APP,
    "istos_worker.fleet": FLEET,
    "istos_worker.observability": FLEET,
    "istos_worker.testing": FLEET,
    "istos_worker.pytest_plugin": FLEET,
    "istos_worker.cli": CLI,
}
DOORWAYS = {("istos_worker.app.app", "istos_worker.testing")}
"""`App.testing()` is where users look for it; nothing is imported before it is called."""
SUPERVISOR_MAY_IMPORT = {"supervisor", "psutil", "setproctitle"}
JOINS_SUPERVISOR = ("istos_worker.cli", "istos_worker.fleet")
ROLE_FAMILIES = ("istos_worker.queue.role", "istos_worker.worker", "istos_worker.client")


@functools.cache
def modules(package: str) -> list[str]:
    files = (ROOT / package).rglob("*.py")
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    return sorted(name.removesuffix(".__init__") for name in names)


@functools.cache
def imports_of(module: str) -> frozenset[str]:
    """What the module imports when it runs, function bodies included, type checking excluded."""
    path = ROOT / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return frozenset(_imports(ast.parse(file.read_text())))


def _imports(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for other in child.orelse:
                    yield from _imports(other)
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(source), names=names, level=0):
                yield source
                yield from (f"{source}.{name.name}" for name in names)
            case _:
                yield from _imports(child)


def layer(name: str) -> int | None:
    """The layer of a module, or of a name in one; None outside of the package."""
    if name.startswith(("istos_worker.queue.role", "istos_worker.queue.verbs")):
        return ROLES
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        known = LAYERS.get(".".join(parts[:length]))
        if known is not None:
            return known
    return None


def family(name: str) -> str | None:
    if name.startswith("istos_worker.queue.verbs"):
        return ROLE_FAMILIES[0]
    return next(
        (known for known in ROLE_FAMILIES if name == known or name.startswith((f"{known}.", f"{known}_"))),
        None,
    )


@pytest.mark.parametrize("module", modules("istos_worker"))
def test_a_module_imports_nothing_above_it(module: str) -> None:
    own = layer(module)
    assert own is not None, f"{module} is in no layer: add it to the table"
    is_file = set(modules("istos_worker"))

    above = {
        name
        for name in imports_of(module)
        if name in is_file and (module, name) not in DOORWAYS and (layer(name) or PURE) > own
    }

    assert not above


@pytest.mark.parametrize("module", [one for one in modules("istos_worker") if family(one)])
def test_owner_worker_and_client_do_not_know_each_other(module: str) -> None:
    others = {name for name in imports_of(module) if family(name) not in (None, family(module))}

    assert not others


@pytest.mark.parametrize("module", modules("supervisor"))
def test_the_supervisor_imports_the_standard_library_psutil_and_setproctitle(module: str) -> None:
    roots = {name.split(".")[0] for name in imports_of(module)}

    assert roots - set(sys.stdlib_module_names) <= SUPERVISOR_MAY_IMPORT


def test_only_the_session_imports_zenoh() -> None:
    importers = [
        module
        for module in modules("istos_worker")
        if any(name.split(".")[0] == "zenoh" for name in imports_of(module))
    ]

    # The zygote preloads zenoh, and looks for sessions that the application opened at import.
    assert importers == ["istos_worker.fleet.zygote", "istos_worker.wire.session"]


def test_only_commands_and_fleet_know_the_supervisor() -> None:
    importers = {
        module
        for module in modules("istos_worker")
        if any(name.split(".")[0] == "supervisor" for name in imports_of(module))
    }

    assert {module for module in importers if not module.startswith(JOINS_SUPERVISOR)} == set()
