"""How a process joins the mesh: the `--connect`, `--listen`, `--mode`, `--scouting` options and the peer's
`ISTOS_ZENOH_*` variables, as one value that renders to Zenoh's own configuration. Does not import zenoh.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

Mode = Literal["peer", "client", "router"]
Scouting = Literal["local", "lan", "off"]

_ENDPOINT = re.compile(r"[a-z0-9_-]+/\S+")
_ZENOH_SOURCE = re.compile(r"\s+at \S+\.rs:\d+\.?")
"""Zenoh ends its messages with places in its own source."""
LOOPBACK = "tcp/127.0.0.1:0"
RECONNECT = {"period_init_ms": 50, "period_max_ms": 500, "period_increase_factor": 2}
"""An owner that restarts is back within a moment; Zenoh itself looks after 1, 2, then every 4 seconds."""
KEEP_ALIVE_LEASE_S = 5.0
"""A frozen process loses its liveliness token after this long (CONTRACT.md 4.3; Zenoh's own default is 10)."""

STUCK_S = 1.5
"""Sending to somebody who takes nothing more waits this long, then the connection to them is closed. It is the
sender's event loop that waits: a frozen worker must not stop an owner for long (Zenoh's own value is 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZenohSettings:
    """With no option at all: a peer that listens on loopback only and finds others on this machine."""

    mode: Mode | None = None
    connect: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()
    scouting: Scouting | None = None
    namespace: str | None = None
    lease_s: float = KEEP_ALIVE_LEASE_S
    connect_timeout_s: float = 3.0
    """How long opening a client's session may look for somebody at `connect`."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Mapping[str, Any] = field(default_factory=dict, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)
    config_file: Path | None = None

    def __post_init__(self) -> None:
        for endpoint in (*self.connect, *self.listen):
            if not _ENDPOINT.fullmatch(endpoint):
                raise ValueError(
                    f"{endpoint!r} is not a Zenoh endpoint: write protocol/host:port, such as tcp/10.0.0.5:7447"
                )
        if self.mode is not None and self.mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {self.mode!r}")
        if self.scouting is not None and self.scouting not in get_args(Scouting):
            raise ValueError(
                f"scouting must be one of {', '.join(get_args(Scouting))}, got {self.scouting!r}"
            )

    @property
    def effective_mode(self) -> Mode:
        return self.mode or ("client" if self.connect else "peer")

    @property
    def effective_scouting(self) -> Scouting:
        return self.scouting or ("off" if self.connect else "local")

    def to_json5(self) -> str:
        """Zenoh's configuration. A `config_file` comes first, our settings over it, `extra` last."""
        config: dict[str, Any] = {}
        if self.config_file is not None:
            _merge(config, _read_config(self.config_file))
        _merge(config, self._own())
        _merge(config, self.extra)
        if isinstance(connect := config.get("connect"), dict):
            connect.setdefault("retry", RECONNECT)
        return json.dumps(config)

    def _own(self) -> dict[str, Any]:
        mode = self.effective_mode
        own: dict[str, Any] = {"mode": mode, "scouting": self._scouting()}
        patience = {"congestion_control": {"block": {"wait_before_close": int(STUCK_S * 1e6)}}}
        own["transport"] = {
            "link": {"tx": {"lease": int(self.lease_s * 1000), "queue": patience}},
            # 16 MiB a process for messages above 3 KiB, left behind when it is killed; measured, it gains nothing.
            "shared_memory": {"enabled": False},
        }
        # Nobody is waited for at the opening: a first request that finds no owner is repeated by its caller.
        own["open"] = {"return_conditions": {"connect_scouted": False, "declares": False}}
        if self.namespace:
            own["namespace"] = self.namespace
        if self.connect:
            own["connect"] = {
                "endpoints": list(self.connect),
                "exit_on_failure": False,
                "timeout_ms": int(self.connect_timeout_s * 1000) if mode == "client" else 0,
            }
        if mode != "client":
            own["listen"] = {"endpoints": list(self.listen) or [LOOPBACK]}
        if self.username is not None and self.password is not None:
            own["transport"]["auth"] = {"usrpwd": {"user": self.username, "password": self.password}}
        if self.tls:
            own["transport"]["link"]["tls"] = dict(self.tls)
        return own

    def _scouting(self) -> dict[str, Any]:
        match self.effective_scouting:
            case "off":
                return {"multicast": {"enabled": False}}
            case "local":
                return {
                    "multicast": {
                        "enabled": True,
                        "interface": "lo" if os.uname().sysname == "Linux" else "lo0",
                    }
                }
            case "lan":
                return {"multicast": {"enabled": True}}

    def open_failure(self, reason: str) -> str:
        """One line for the operator."""
        if self.is_nobody_there(reason):
            also = ", and do its TLS and password settings fit ours" if self._is_guarded else ""
            return f"nobody answers at {', '.join(self.connect)}: is the owner or router there running{also}?"
        where = ", ".join((*self.connect, *self.listen)) or LOOPBACK
        told = _ZENOH_SOURCE.sub("", reason).strip()
        return f"cannot open a Zenoh session ({self.effective_mode}, {where}): {told}"

    @property
    def _is_guarded(self) -> bool:
        return bool(self.tls or self.username) or any(
            one.startswith(("tls/", "quic/")) for one in self.connect
        )

    def is_nobody_there(self, reason: str) -> bool:
        """True when Zenoh's reason is that nothing could be connected to."""
        return bool(self.connect) and "Unable to connect" in reason

    def over(self, **options: Any) -> ZenohSettings:
        """These settings with the given ones (those that are not None or empty) on top."""
        return replace(
            self, **{name: value for name, value in options.items() if value not in (None, (), {})}
        )


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for name, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(name), dict):
            _merge(base[name], value)
        else:
            base[name] = dict(value) if isinstance(value, Mapping) else value


def _read_config(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_bytes())
    except OSError as failed:
        raise ValueError(f"cannot read the Zenoh configuration {path}: {failed.strerror}") from failed
    except ValueError as broken:
        raise ValueError(f"the Zenoh configuration {path} is not JSON: {broken}") from broken
    if not isinstance(loaded, dict):
        raise ValueError(f"the Zenoh configuration {path} must be a JSON object")
    return loaded


def settings_from_env(env: Mapping[str, str]) -> ZenohSettings:
    """The peer's `ISTOS_ZENOH_*` variables. Raises ValueError for a name that is not one of them, as the
    peer does: a typo must not switch authentication off."""
    known = {name[len(_PREFIX) :]: value for name, value in env.items() if name.startswith(_PREFIX)}
    unknown = sorted(known.keys() - _NAMES)
    if unknown:
        raise ValueError(f"unknown variable {_PREFIX}{unknown[0]}; known: {', '.join(sorted(_NAMES))}")
    scouting: Scouting | None = None
    if "MULTICAST_SCOUTING" in known:
        scouting = "lan" if known["MULTICAST_SCOUTING"].lower() in ("1", "true", "yes", "on") else "off"
    extra = _json_object(known.get("ADDITIONAL_CONFIG"), "ADDITIONAL_CONFIG")
    return ZenohSettings(
        mode=known.get("MODE"),  # type: ignore[arg-type]  # checked in __post_init__
        connect=_endpoints(known, "CONNECT_ENDPOINTS"),
        listen=_endpoints(known, "LISTEN_ENDPOINTS"),
        scouting=scouting,
        username=known.get("USERNAME"),
        password=known.get("PASSWORD"),
        tls=_tls(known),
        extra=extra,
    )


_PREFIX = "ISTOS_ZENOH_"
_TLS_NAMES = (
    "ROOT_CA_CERTIFICATE",
    "LISTEN_CERTIFICATE",
    "LISTEN_PRIVATE_KEY",
    "CONNECT_CERTIFICATE",
    "CONNECT_PRIVATE_KEY",
)
_NAMES = frozenset(
    (
        "MODE",
        "SESSION",
        "CONNECT_ENDPOINTS",
        "LISTEN_ENDPOINTS",
        "MULTICAST_SCOUTING",
        "USERNAME",
        "PASSWORD",
        "ENABLE_MTLS",
        "ADDITIONAL_CONFIG",
        *_TLS_NAMES,
    )
)


def _tls(known: Mapping[str, str]) -> dict[str, Any]:
    tls: dict[str, Any] = {}
    for name in _TLS_NAMES:
        if known.get(name):
            tls[name.lower()] = known[name]
    if known.get("ENABLE_MTLS", "").lower() in ("1", "true", "yes", "on"):
        tls["enable_mtls"] = True
    return tls


def _endpoints(known: Mapping[str, str], name: str) -> tuple[str, ...]:
    """A JSON array, or text separated by commas."""
    text = known.get(name, "").strip()
    if not text.startswith("["):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        listed: Sequence[Any] = json.loads(text)
    except json.JSONDecodeError as broken:
        raise ValueError(f"{_PREFIX}{name} is not JSON: {broken}") from broken
    return tuple(str(endpoint) for endpoint in listed)


def _json_object(text: str | None, name: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        loaded = json.loads(text)
    except json.JSONDecodeError as broken:
        raise ValueError(f"{_PREFIX}{name} is not JSON: {broken}") from broken
    if not isinstance(loaded, dict):
        raise ValueError(f"{_PREFIX}{name} must be a JSON object")
    return loaded
