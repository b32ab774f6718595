"""`Depends`: what a handler needs besides its job. Inspected once, at registration; nothing per job.

The semantics are peer 0.3's: marked by default value or `Annotated`, sub-dependencies, one result per job
and function unless `use_cache=False`, plain functions and generators off the loop, generators cleaned up in
reverse order, `overrides` for tests. docs/decisions/dependencies.md says why this is our own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Overrides = Mapping[Callable[..., Any], Callable[..., Any]]
Kind = Literal["sync", "async", "generator", "async generator"]
CONTEXT = "ctx"


class RunSync(Protocol):
    """Runs a function off the loop."""

    def __call__(self, function: Callable[[], Any], /) -> Awaitable[Any]: ...


class DependencyCycleError(RuntimeError):
    """A needs B needs A."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """What `Depends(...)` leaves at a parameter."""

    dependency: Callable[..., Any]
    use_cache: bool = True


def Depends(dependency: Callable[..., Any], use_cache: bool = True) -> Any:  # noqa: N802 - the field's name
    """Marks a parameter as injected: `db: Db = Depends(get_db)` or `db: Annotated[Db, Depends(get_db)]`.

    `dependency` is a function, coroutine function, generator or async generator (what follows its `yield`
    is clean-up); it may have `Depends` parameters of its own, and `ctx`.
    """
    return Dependency(dependency, use_cache)


@dataclass(frozen=True, slots=True)
class _Node:
    """One dependency: a function, how to call it, and what it needs first."""

    function: Callable[..., Any]
    kind: Kind
    use_cache: bool
    wants_context: bool
    needs: tuple[tuple[str, _Node], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to call one function. `simple`: it needs nothing injected but perhaps `ctx`."""

    function: Callable[..., Any]
    name: str
    is_async: bool
    wants_context: bool
    needs: tuple[tuple[str, _Node], ...] = ()
    supplied: int | None = 1
    overrides: Overrides | None = None
    _overridden: dict[tuple[Any, ...], Plan] = field(default_factory=dict, repr=False, compare=False)

    @property
    def simple(self) -> bool:
        return not self.needs

    def current(self) -> Plan:
        """This plan with the overrides of this moment."""
        if not self.overrides:
            return self
        key = tuple(self.overrides.items())
        plan = self._overridden.get(key)
        if plan is None:
            if len(self._overridden) > 64:
                self._overridden.clear()
            plan = _compile(self.function, self.supplied, dict(self.overrides))
            self._overridden[key] = plan
        return plan


def compile_plan(
    function: Callable[..., Any], *, supplied: int | None = 1, overrides: Overrides | None = None
) -> Plan:
    """The plan of a handler.

    `supplied` positional parameters come from the job; None: all that are not injected do (tasks).
    `overrides` is kept, not copied, and read again for every job.
    Raises TypeError for a parameter that nothing supplies and for a generator; DependencyCycleError.
    """
    plan = _compile(function, supplied, {})
    if overrides is None or plan.simple:
        return plan
    return Plan(
        function=plan.function,
        name=plan.name,
        is_async=plan.is_async,
        wants_context=plan.wants_context,
        needs=plan.needs,
        supplied=supplied,
        overrides=overrides,
    )


def injected_names(function: Callable[..., Any]) -> frozenset[str]:
    """The parameters that a worker supplies: those with `Depends`, and `ctx`."""
    return frozenset(
        parameter.name
        for parameter in _parameters(function)
        if parameter.name == CONTEXT or _marker(function, parameter) is not None
    )


def _compile(function: Callable[..., Any], supplied: int | None, overrides: Overrides) -> Plan:
    kind = _kind(function)
    if kind in ("generator", "async generator"):
        raise TypeError(f"{_name(function)} is a generator: a handler returns its result, it does not yield")
    parameters = _parameters(function)
    left = len(parameters) if supplied is None else supplied
    needs: list[tuple[str, _Node]] = []
    for parameter in parameters:
        marker = _marker(function, parameter)
        if marker is not None:
            needs.append((parameter.name, _node(marker, overrides, (function,))))
        elif parameter.name == CONTEXT:
            continue
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) and left > 0:
            left -= 1
        elif supplied is not None:
            _check_supplied(function, parameter)
    if supplied and left and not _takes_any_number(function, parameters):
        raise TypeError(f"{_name(function)} has no positional parameter for its job")
    return Plan(
        function=function,
        name=_name(function),
        is_async=kind == "async",
        wants_context=_wants_context(function, parameters),
        needs=tuple(needs),
        supplied=supplied,
    )


def _takes_any_number(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> bool:
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return True
    return not parameters and not hasattr(function, "__code__")  # a builtin without a signature


def _node(marker: Dependency, overrides: Overrides, chain: tuple[Callable[..., Any], ...]) -> _Node:
    function = overrides.get(marker.dependency, marker.dependency)
    if function in chain or (function is not marker.dependency and marker.dependency in chain):
        names = " -> ".join(_name(each) for each in (*chain, function))
        raise DependencyCycleError(f"dependencies form a cycle: {names}")
    parameters = _parameters(function)
    needs: list[tuple[str, _Node]] = []
    for parameter in parameters:
        below = _marker(function, parameter)
        if below is not None:
            needs.append((parameter.name, _node(below, overrides, (*chain, function))))
        elif parameter.name != CONTEXT:
            _check_supplied(function, parameter)
    return _Node(
        function, _kind(function), marker.use_cache, _wants_context(function, parameters), tuple(needs)
    )


def _check_supplied(function: Callable[..., Any], parameter: inspect.Parameter) -> None:
    if parameter.default is parameter.empty and parameter.kind in (
        parameter.POSITIONAL_ONLY,
        parameter.POSITIONAL_OR_KEYWORD,
        parameter.KEYWORD_ONLY,
    ):
        raise TypeError(
            f"nothing supplies the parameter {parameter.name!r} of {_name(function)}: give it a default value "
            "or Depends(...)"
        )


def _wants_context(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> bool:
    return any(
        parameter.name == CONTEXT
        and parameter.kind is not parameter.POSITIONAL_ONLY
        and _marker(function, parameter) is None
        for parameter in parameters
    )


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
        return []


def _marker(function: Callable[..., Any], parameter: inspect.Parameter) -> Dependency | None:
    if isinstance(parameter.default, Dependency):
        return parameter.default
    annotation = parameter.annotation
    if isinstance(annotation, str):
        if "Annotated" not in annotation:
            return None
        annotation = _evaluated(function, parameter)
    for note in getattr(annotation, "__metadata__", ()):
        if isinstance(note, Dependency):
            return note
    return None


def _evaluated(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The annotation that `from __future__ import annotations` left as text."""
    target = inspect.unwrap(function)
    if isinstance(target, functools.partial):
        target = target.func
    names = getattr(target, "__globals__", None) or getattr(type(target).__call__, "__globals__", {})
    try:
        return eval(parameter.annotation, dict(names))  # the application's own source text
    except Exception as failed:
        if "Depends" not in parameter.annotation:
            return None
        raise TypeError(
            f"cannot read the annotation of {parameter.name!r} of {_name(function)} ({failed}): "
            "define what it names at module level, or write Depends(...) as the default value"
        ) from failed


def _kind(function: Callable[..., Any]) -> Kind:
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target) and not inspect.isclass(target) and callable(target):
        target = type(target).__call__
    if inspect.isasyncgenfunction(target):
        return "async generator"
    if inspect.isgeneratorfunction(target):
        return "generator"
    return "async" if inspect.iscoroutinefunction(target) else "sync"


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__name__", None) or type(function).__name__
    return name


async def resolve(
    needs: tuple[tuple[str, _Node], ...], context: Any, stack: AsyncExitStack, run_sync: RunSync
) -> dict[str, Any]:
    """The injected arguments. What generators still have to do is left on `stack`."""
    resolving = _Resolving(context, stack, run_sync)
    return {name: await resolving.value(node) for name, node in needs}


class _Resolving:
    """The dependencies of one job."""

    __slots__ = ("_cache", "_context", "_run_sync", "_stack")

    def __init__(self, context: Any, stack: AsyncExitStack, run_sync: RunSync) -> None:
        self._context = context
        self._stack = stack
        self._run_sync = run_sync
        self._cache: dict[Callable[..., Any], Any] = {}

    async def value(self, node: _Node) -> Any:
        if node.use_cache and node.function in self._cache:
            return self._cache[node.function]
        arguments = {name: await self.value(below) for name, below in node.needs}
        if node.wants_context:
            arguments[CONTEXT] = self._context
        value = await self._call(node, arguments)
        if node.use_cache:
            self._cache[node.function] = value
        return value

    async def _call(self, node: _Node, arguments: dict[str, Any]) -> Any:
        function = node.function
        match node.kind:
            case "async":
                return await function(**arguments)
            case "sync":
                return await self._run_sync(functools.partial(function, **arguments))
            case "async generator":
                return await self._stack.enter_async_context(asynccontextmanager(function)(**arguments))
            case "generator":
                managed = contextmanager(function)(**arguments)
                return await self._stack.enter_async_context(_off_loop(managed, self._run_sync))


@asynccontextmanager
async def _off_loop(managed: Any, run_sync: RunSync) -> Any:
    """A plain context manager whose both ends run off the loop."""
    value = await run_sync(managed.__enter__)
    try:
        yield value
    except BaseException as failure:
        leave = functools.partial(managed.__exit__, type(failure), failure, failure.__traceback__)
        if not await run_sync(leave):
            raise
    else:
        await run_sync(functools.partial(managed.__exit__, None, None, None))


def needs_of(plan: Plan) -> Iterator[Callable[..., Any]]:
    """The functions a plan calls before the handler, for `--check`."""
    for _, node in plan.needs:
        yield node.function
