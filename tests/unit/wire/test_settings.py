"""How a process joins the mesh, as Zenoh is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from istos_worker.wire.settings import ZenohSettings, settings_from_env


def rendered(settings: ZenohSettings) -> dict[str, Any]:
    told = orjson.loads(settings.to_json5())
    assert isinstance(told, dict)
    return told


def test_without_options_nothing_leaves_the_machine() -> None:
    told = rendered(ZenohSettings())

    assert told["mode"] == "peer"
    assert told["listen"]["endpoints"] == ["tcp/127.0.0.1:0"]
    assert told["scouting"]["multicast"]["interface"] in ("lo", "lo0")


def test_connect_makes_a_client_that_does_not_scout() -> None:
    told = rendered(ZenohSettings(connect=("tcp/10.0.0.5:7447",), connect_timeout_s=1.5))

    assert told["mode"] == "client"
    assert told["scouting"]["multicast"] == {"enabled": False}
    assert told["connect"]["timeout_ms"] == 1500
    assert "listen" not in told


def test_the_peers_variables_are_read() -> None:
    settings = settings_from_env(
        {
            "ISTOS_ZENOH_MODE": "peer",
            "ISTOS_ZENOH_CONNECT_ENDPOINTS": '["tcp/a:1", "tcp/b:2"]',
            "ISTOS_ZENOH_LISTEN_ENDPOINTS": "tcp/0.0.0.0:7447, tls/0.0.0.0:7448",
            "ISTOS_ZENOH_MULTICAST_SCOUTING": "true",
            "ISTOS_ZENOH_USERNAME": "u",
            "ISTOS_ZENOH_PASSWORD": "s3cr3t",
            "ISTOS_ZENOH_ROOT_CA_CERTIFICATE": "/ca.pem",
            "ISTOS_ZENOH_ENABLE_MTLS": "1",
            "ISTOS_ZENOH_ADDITIONAL_CONFIG": '{"timestamping": {"enabled": true}}',
            "HOME": "/root",
        }
    )
    told = rendered(settings)

    assert told["connect"]["endpoints"] == ["tcp/a:1", "tcp/b:2"]
    assert told["listen"]["endpoints"] == ["tcp/0.0.0.0:7447", "tls/0.0.0.0:7448"]
    assert told["scouting"]["multicast"] == {"enabled": True}
    assert told["transport"]["auth"]["usrpwd"] == {"user": "u", "password": "s3cr3t"}
    assert told["transport"]["link"]["tls"] == {"root_ca_certificate": "/ca.pem", "enable_mtls": True}
    assert told["timestamping"] == {"enabled": True}
    assert "s3cr3t" not in repr(settings)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"ISTOS_ZENOH_USERNAM": "u"}, "USERNAM"),
        ({"ISTOS_ZENOH_MODE": "boss"}, "mode"),
        ({"ISTOS_ZENOH_CONNECT_ENDPOINTS": "10.0.0.1"}, "endpoint"),
        ({"ISTOS_ZENOH_CONNECT_ENDPOINTS": "[1"}, "CONNECT_ENDPOINTS"),
        ({"ISTOS_ZENOH_ADDITIONAL_CONFIG": "[]"}, "ADDITIONAL_CONFIG"),
    ],
)
def test_a_wrong_variable_is_named(env: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        settings_from_env(env)


def test_a_configuration_file_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "zenoh.json"
    file.write_text('{"mode": "router", "qos": {"network": []}}')

    told = rendered(ZenohSettings(config_file=file, extra={"mode": "client"}))

    assert told["mode"] == "client"
    assert told["qos"] == {"network": []}
    with pytest.raises(ValueError, match="cannot read"):
        ZenohSettings(config_file=tmp_path / "none").to_json5()


def test_zenohs_reasons_are_told_without_its_source_lines() -> None:
    reason = (
        "Can not create a new TCP listener bound to tcp/127.0.0.1:1: [127.0.0.1:1: Address already in use "
        "(os error 98) at /root/.cargo/git/x/tcp.rs:61.] at /root/.cargo/git/x/unicast.rs:338."
    )

    told = ZenohSettings(listen=("tcp/127.0.0.1:1",)).open_failure(reason)

    assert "already in use" in told
    assert ".rs" not in told


def test_a_lost_connection_is_tried_again_soon_unless_the_user_says_otherwise() -> None:
    endpoint = "tcp/10.0.0.1:7447"
    retry = {"period_init_ms": 9000}

    usual = rendered(ZenohSettings(connect=(endpoint,)))
    told = rendered(ZenohSettings(connect=(endpoint,), extra={"connect": {"retry": retry}}))

    assert usual["connect"]["retry"]["period_max_ms"] <= 500
    assert told["connect"]["retry"] == retry
    assert told["connect"]["endpoints"] == [endpoint]
