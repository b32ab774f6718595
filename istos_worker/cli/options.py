"""What both commands take the same way: durations, sizes, the network and the credential, and where an
option's value comes from (command line, environment, `[tool.istos-worker]` in pyproject.toml, default).
Knows no verbs, and imports neither zenoh nor the application.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import click
from click.core import ParameterSource

from istos_worker.wire.settings import ZenohSettings, settings_from_env

if TYPE_CHECKING:  # generic only in the stubs of the newer click
    _FloatType = click.ParamType[float]
    _IntType = click.ParamType[int]
    _TextType = click.ParamType[str]
else:
    _FloatType = _IntType = _TextType = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_NOT_FROM_ENV = ("lease_s", "connect_timeout_s")
_NETWORK = ("connect", "listen", "mode", "scouting", "namespace", "zenoh_config")


def parse_duration(text: str) -> float:
    """Seconds of `30`, `30s`, `250ms`, `5m`, `2h`, `1d`. Raises ValueError."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write 30, 30s, 250ms, 5m, 2h or 1d")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def parse_size(text: str) -> int:
    """Bytes of `4096`, `300M`, `1.5G`, `64KiB` (powers of 1024). Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write 4096, 64K, 300M or 1.5G")
    return int(float(match[1]) * _BYTES[match[2].lower()])


class Duration(_FloatType):
    """An option's value in seconds, as a float."""

    name = "duration"

    def __init__(self, *, low_s: float = 0.0, high_s: float = 10 * 365 * 86400.0) -> None:
        self._low_s = low_s
        self._high_s = high_s

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value) if isinstance(value, (int, float)) else parse_duration(str(value))
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)
        if not self._low_s <= seconds <= self._high_s:
            self.fail(f"{value} is not from {self._low_s:g}s to {self._high_s:g}s", param, ctx)
        return seconds


class Size(_IntType):
    """An option's value in bytes, as an int."""

    name = "size"

    def __init__(self, *, low: int = 1) -> None:
        self._low = low

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size = value if isinstance(value, int) else parse_size(str(value))
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)
        if size < self._low:
            self.fail(f"{value} is less than {self._low} bytes", param, ctx)
        return size


class Listed(_TextType):
    """A repeatable option's member; its environment variable separates them by commas or blanks."""

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return rv.replace(",", " ").split()


class ListedText(Listed):
    """Any text."""

    name = "text"

    def __init__(self, name: str = "text") -> None:
        self.name = name

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value).strip()


def pyproject_table(directory: Path) -> dict[str, Any]:
    """`[tool.istos-worker]` of the pyproject.toml in `directory`, names as click parameters. Raises
    UsageError when the file cannot be read as TOML."""
    path = directory / "pyproject.toml"
    try:
        with path.open("rb") as file:
            tool = tomllib.load(file).get("tool", {})
    except OSError:  # no file, or not ours to read
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as broken:
        raise click.UsageError(f"{path} is not TOML: {broken}") from broken
    table = tool.get("istos-worker", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise click.UsageError(f"tool.istos-worker in {path} must be a table")
    return {str(name).replace("-", "_"): value for name, value in table.items()}


class ConfiguredCommand(click.Command):
    """A command whose options are also read from `{env_prefix}_<OPTION>` and from pyproject.toml.

    Both commands share one table, so each takes from it the names that are options of its own.
    """

    env_prefix: ClassVar[str] = "ISTOS"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._configurable = {_name_of(one): one for one in self.params if isinstance(one, click.Option)}
        for name, option in self._configurable.items():
            option.envvar = option.envvar or f"{self.env_prefix}_{name.upper()}"

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        extra["default_map"] = self._table()
        return super().make_context(info_name, args, parent, **extra)

    def _table(self) -> dict[str, Any]:
        """The table's values by the names of click's parameters."""
        found: dict[str, Any] = {}
        for name, value in pyproject_table(Path.cwd()).items():
            option = self._configurable.get(name)
            if option is None:
                _refuse_unknown(name)
            elif option.name is not None:
                listed = option.multiple and not isinstance(value, list)
                found[option.name] = [value] if listed else value
        return found


def _refuse_unknown(name: str) -> None:
    """The other command's names are fine; one that is neither's is a typo, and would be missed in production."""
    from istos_worker.cli.queue import queue
    from istos_worker.cli.worker_command import run

    known = {"target", "targets", *_option_names(run), *_option_names(queue)}
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0].replace('_', '-')}?" if close else ""
        written = name.replace("_", "-")
        raise click.UsageError(f"[tool.istos-worker] in pyproject.toml has no option {written!r}{hint}")


def _option_names(command: click.Command) -> set[str]:
    names = {_name_of(one) for one in command.params if isinstance(one, click.Option)}
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return names.union(*map(_option_names, below))


def _name_of(option: click.Option) -> str:
    """`drain_timeout` for `--drain-timeout`, whatever the function's parameter is called."""
    longest = max(option.opts, key=len)
    return longest.lstrip("-").replace("-", "_")


class WorkerCommand(ConfiguredCommand):
    env_prefix = "ISTOS_WORKER"


class QueueCommand(ConfiguredCommand):
    env_prefix = "ISTOS_QUEUE"


def failure_line(program: str, wrong: click.ClickException) -> str:
    """One line, and after a mistake in the usage where to read on."""
    if isinstance(wrong, click.exceptions.NoArgsIsHelpError):
        return wrong.format_message()
    if not isinstance(wrong, click.UsageError):
        return f"{program}: {wrong.format_message()}"
    asked = program if wrong.ctx is None else wrong.ctx.command_path
    return f"{program}: {wrong.format_message()} (see {asked} --help)"


class QueueGroup(click.Group):
    command_class = QueueCommand


def log_options(command: F) -> F:
    """`--log-level` and `--log-format`."""
    levels = click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)
    formats = click.Choice(["text", "json"])
    command = click.option("--log-format", type=formats, default="text", show_default=True)(command)
    return click.option("--log-level", type=levels, default="info", show_default=True)(command)


def network_options(command: F, *, listens: bool = True) -> F:
    """Adds `--connect ... --token-file`; the function gets `network: ZenohSettings` and
    `token: str | None` instead of them. `listens` False: without `--listen`."""

    @functools.wraps(command)
    def with_network(*args: Any, **kwargs: Any) -> Any:
        ctx = click.get_current_context()
        taken = {name: kwargs.pop(name, ()) for name in (*_NETWORK, "token", "token_file")}
        kwargs["token"] = _token(ctx, taken["token"], taken["token_file"])
        kwargs["network"] = network_settings(ctx, taken, os.environ)
        return command(*args, **kwargs)

    options = reversed(_network_params(listens))
    return cast(F, functools.reduce(lambda made, option: option(made), options, with_network))


def _network_params(listens: bool) -> tuple[Callable[[Any], Any], ...]:
    endpoint = ListedText("endpoint")
    file = click.Path(dir_okay=False, path_type=Path)
    connect = "Connect to this Zenoh endpoint, such as tcp/10.0.0.5:7447 (repeatable)."
    listen = "Listen at this Zenoh endpoint (repeatable)."
    mode = click.Choice(["peer", "client", "router"])
    scouting = click.Choice(["local", "lan", "off"])
    where = "Where to find others: this machine, the network, nowhere."
    at = click.option("--listen", type=endpoint, multiple=True, metavar="EP", help=listen)
    return (
        click.option("--connect", type=endpoint, multiple=True, metavar="EP", help=connect),
        *((at,) if listens else ()),
        click.option("--mode", type=mode, help="Zenoh mode: client with --connect, else peer."),
        click.option("--scouting", type=scouting, help=where),
        click.option("--namespace", metavar="NS", help="Put every key under this name."),
        click.option("--zenoh-config", type=file, metavar="FILE", help="A Zenoh configuration (JSON)."),
        click.option("--token", metavar="T", help="Credential sent with every call."),
        click.option("--token-file", type=file, metavar="F", help="Read the credential from this file."),
    )


def network_settings(ctx: click.Context, values: Mapping[str, Any], env: Mapping[str, str]) -> ZenohSettings:
    """The session's settings: our options, then the peer's `ISTOS_ZENOH_*`, then pyproject.toml."""
    given = {("config_file" if name == "zenoh_config" else name): values[name] for name in _NETWORK}
    lowest = {
        name: value
        for name, value in given.items()
        if _source(ctx, "zenoh_config" if name == "config_file" else name) is ParameterSource.DEFAULT_MAP
    }
    highest = {name: value for name, value in given.items() if name not in lowest}
    try:
        from_env = settings_from_env(env)
        named = {name: getattr(from_env, name) for name in from_env.__slots__ if name not in _NOT_FROM_ENV}
        settings = ZenohSettings().over(**lowest).over(**named).over(**highest)
        settings.to_json5()  # reads the configuration file, if there is one: better here than in every process
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from wrong
    return settings


def _token(ctx: click.Context, token: str | None, token_file: Path | None) -> str | None:
    if token is not None and token_file is not None:
        # The one given nearer to the user wins; two at the same distance are a mistake.
        sources = [_rank(_source(ctx, "token")), _rank(_source(ctx, "token_file"))]
        if sources[0] == sources[1]:
            raise click.UsageError("give --token or --token-file, not both")
        if sources[0] < sources[1]:
            return token
    if token_file is None:
        return token
    return read_secret(token_file, "--token-file")


def read_secret(path: Path, option: str) -> str:
    """The file's one line. Raises UsageError naming the file, never its content."""
    try:
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as failed:
        reason = failed.strerror if isinstance(failed, OSError) else "it is not text"
        raise click.UsageError(f"cannot read {option} {path}: {reason}") from failed
    if not secret:
        raise click.UsageError(f"{option} {path} is empty")
    return secret


def _source(ctx: click.Context, name: str) -> ParameterSource | None:
    return ctx.get_parameter_source(name)


def _rank(source: ParameterSource | None) -> int:
    order = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)
    return order.index(source) if source in order else len(order)
