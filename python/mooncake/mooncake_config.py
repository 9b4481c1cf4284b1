# SPDX-License-Identifier: Apache-2.0
"""mooncake.mooncake_config: the arguments of setup() from a JSON file or from the environment. Errors are ValueErrors that name
the field."""
import difflib
import json
import logging
import os
from dataclasses import dataclass
from typing import Any, Optional

from . import _setup

log = logging.getLogger("mooncake.config")

DEFAULT_GLOBAL_SEGMENT_SIZE = 3200 << 20  # bytes, of the reference
DEFAULT_LOCAL_BUFFER_SIZE = 1 << 30
_FILE_BYTES = 1 << 20
_NEEDED = ("local_hostname", "metadata_server", "master_server_address")
_SIZES = ("global_segment_size", "local_buffer_size")
_OF_OTHERS = {"mode", "storage_root_dir", "use_ascend_direct", "enable_offload"}  # which connectors read from the same file
_TRUE, _FALSE = ("true", "1", "yes", "on", "enable"), ("false", "0", "no", "off", "disable", "")
# Field: the variable that it is read from where there is no file.
_VARIABLES = {
    "local_hostname": "MOONCAKE_LOCAL_HOSTNAME", "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE", "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL", "device_name": "MOONCAKE_DEVICE", "master_server_address": "MOONCAKE_MASTER",
    "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED", "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "tenant_id": "MOONCAKE_TENANT_ID", "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
    "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
}


def _parse_segment_size(value: Any) -> int:
    """Bytes of a number, or of text with a unit (powers of 1024); fractions are allowed: "1.5 GB"."""
    if not isinstance(value, str):
        return int(value)
    text = value.strip().upper()
    digits = text.rstrip("BKMGT ")
    unit = text[len(digits):].strip()
    if not digits or unit not in _setup.UNITS:
        raise ValueError(f"Invalid segment size: {value!r}")
    try:
        return int(float(digits) * _setup.UNITS[unit])
    except (ValueError, OverflowError):  # "1e", "inf"
        raise ValueError(f"Invalid segment size: {value!r}") from None


def _size_of(name: str, value: Any) -> int:
    try:
        if value is None or isinstance(value, bool):
            raise ValueError("a number of bytes, or text with a unit, is wanted")
        return _parse_segment_size(value)
    except (TypeError, ValueError, OverflowError) as e:
        raise ValueError(f"Invalid {name}: {value!r}: {e}") from None


def _port_of(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"Invalid {name}: {value!r}: a number is wanted") from None


def _tell_unknown(fields: dict[str, Any]) -> None:
    """Logs one line for each unknown field, with a similar field if there is one."""
    for name in sorted(fields.keys() - _VARIABLES.keys() - _OF_OTHERS):
        near = difflib.get_close_matches(name, _VARIABLES, 1)
        log.warning("unknown field %r is ignored%s", name[:100], f"; is {near[0]!r} meant?" if near else "")


def _truth_of(value: Any) -> bool:
    if value is None or isinstance(value, (bool, int, float)):
        return bool(value)
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise ValueError(f"Invalid boolean value: {value!r}")
    return text in _TRUE


def _text_or(default: str, value: Any) -> str:
    return default if value is None else str(value)


@dataclass
class MooncakeConfig:
    """Sizes are bytes. device_name has RDMA devices, separated by commas. A pool does not use the last two fields."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: Optional[str]
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, str) or not self.protocol.strip():
            raise ValueError(f"Invalid protocol: {self.protocol!r}: a name is wanted, as 'tcp' or 'rdma'")
        self.protocol = self.protocol.strip().lower()
        if self.protocol not in _setup.PROTOCOLS:
            log.warning("a pool has no protocol %r: setup() refuses it, unless $KVPOOL_TRANSPORTS names the transports", self.protocol)
        for name in _SIZES:
            if getattr(self, name) < 0:
                raise ValueError(f"Invalid {name}: {getattr(self, name)} is below 0")
        for name in _NEEDED:
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"Config field {name!r} must be a non-empty string, not {value!r}")

    @staticmethod
    def from_file(file_path: str) -> "MooncakeConfig":
        """Reads a file with a JSON object. OSError if it cannot be read."""
        with open(file_path, "rb") as file:
            text = file.read(_FILE_BYTES + 1)
        if len(text) > _FILE_BYTES:
            raise ValueError(f"{file_path} is longer than a megabyte")
        try:
            fields = json.loads(text)
        except RecursionError:
            fields = None
        if not isinstance(fields, dict):
            raise ValueError(f"{file_path} holds no JSON object")
        return _of_fields(fields)

    @staticmethod
    def load_from_env() -> "MooncakeConfig":
        """Reads the file $MOONCAKE_CONFIG_PATH. Without this variable it reads $MOONCAKE_MASTER, which is then required, and the
        other variables."""
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path is not None:
            return MooncakeConfig.from_file(path)
        if not os.environ.get("MOONCAKE_MASTER"):
            raise ValueError("Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set.")
        given = {name: os.environ[variable] for name, variable in _VARIABLES.items() if variable in os.environ}
        return _of_fields({"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", **given})


def _of_fields(fields: dict[str, Any]) -> MooncakeConfig:
    for name in _NEEDED:
        if name not in fields:
            raise ValueError(f"Missing required config field: {name}")
    _tell_unknown(fields)
    return MooncakeConfig(
        local_hostname=fields["local_hostname"], metadata_server=fields["metadata_server"],
        global_segment_size=_size_of("global_segment_size", fields.get("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE)),
        local_buffer_size=_size_of("local_buffer_size", fields.get("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE)),
        protocol=fields.get("protocol", "tcp"), device_name=fields.get("device_name", ""),
        master_server_address=fields["master_server_address"],
        enable_ssd_offload=_truth_of(fields.get("enable_ssd_offload", False)),
        ssd_offload_path=_text_or("", fields.get("ssd_offload_path")), tenant_id=_text_or("default", fields.get("tenant_id")),
        enable_client_http_server=_truth_of(fields.get("enable_client_http_server", False)),
        client_http_port=_port_of("client_http_port", fields.get("client_http_port", 9300)))
