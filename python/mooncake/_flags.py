# SPDX-License-Identifier: Apache-2.0
"""The reference's command lines: --name=value, --name value, one dash or two, --flag and --noflag; and its files of flags.

A flag that a pool has no use for does not end a program that engines' scripts start, but is never passed over in silence: what is done
instead stands in one line. Where that could cost somebody what he relies on, the program ends and says what to do.
"""
import json
import logging
import os
import re
import sys

from kvpool import __version__

from ._setup import join_host

# Of the libraries that parse the reference's command line and write its log, glog and gflags: each program takes them.
_LOGGING_BOOLS = (
    "timestamp_in_logfile_name", "logtostderr", "alsologtostderr", "colorlogtostderr", "colorlogtostdout", "logtostdout", "drop_log_memory",
    "log_file_header", "log_prefix", "log_year_in_prefix", "stop_logging_if_full_disk", "log_utc_time", "symbolize_stacktrace",
    "version")
_LOGGING = _LOGGING_BOOLS + (
    "stderrthreshold", "alsologtoemail", "minloglevel", "logbuflevel", "logbufsecs", "logcleansecs", "logemaillevel", "logmailer",
    "logfile_mode", "log_dir", "log_link", "max_log_size", "log_backtrace_at", "v", "vmodule", "flagfile", "fromenv", "tryfromenv",
    "undefok", "tab_completion_word", "tab_completion_columns")
_HELPS = ("help", "h", "helpfull", "helpshort", "helppackage", "helpxml", "helpon", "helpmatch")
_TRUE, _FALSE = ("true", "1", "yes", "t", "y"), ("false", "0", "no", "f", "n")
_OFF = _FALSE + ("", "off")
_FILE_BYTES = 1 << 20
_LINE = re.compile(r"(\w+)\s*:(?:\s+(.*))?")
_COMMENT = re.compile(r"(?:^|\s+)#")


def _plain(text):
    """A plain value in YAML, without its quotes and what is noted behind it; None where it is more than that."""
    if text[:1] in ("'", '"'):
        value, quote, rest = text[1:].partition(text[0])
        return value if quote and "\\" not in value and (not rest.strip() or _COMMENT.match(rest)) else None
    value = _COMMENT.split(text)[0].strip()
    return None if value[:1] in tuple("[{|>&*!%@`") or value == "-" or value.startswith("- ") else value


class Flags:
    """values: name -> text, of those given, over the defaults; a flag with a bool as default takes no following word. without_use are
    flags that change nothing. instead and refused: name -> text, of flags that do when they are on: what is done instead, or what to
    do about it. With a default of "config_path" a file is read, whose values come before defaults and after the command line's."""

    def __init__(self, program, defaults, without_use=(), instead=(), refused=()):
        self._program = program
        self._defaults = defaults
        self._without_use = frozenset(without_use).union(_LOGGING) - frozenset(defaults)
        self._instead = dict(instead)
        self._refused = dict(refused)
        self._names = self._without_use.union(defaults, self._instead, self._refused)

    def _fail(self, text):
        sys.exit(f"{self._program}: {text}")

    def _usage(self):
        print(f"usage: {self._program} [--flag=value ...]")
        for name, value in self._defaults.items():
            print(f"  --{name} (default {value!r})")
        for name, text in self._instead.items():
            print(f"  --{name}: {text}")
        for name, text in self._refused.items():
            print(f"  --{name} is refused: {text}")
        print("Taken, and of no use to a pool: " + ", ".join(sorted(self._without_use)))
        sys.exit(0)

    def parse(self, words):
        given = self._split(list(words))
        path = given.get("config_path", "")
        if path and "config_path" in self._defaults:
            given = {**self._read(path), **given}
        values = dict(self._defaults)
        for name, text in given.items():
            is_on = text.strip().lower() not in _OFF
            if name in self._defaults:
                values[name] = self._value(name, text)
            elif name in self._without_use:
                print(f"{self._program}: --{name} is of no use to a pool", file=sys.stderr)
            elif name in self._instead and is_on:
                print(f"{self._program}: --{name}: {self._instead[name]}", file=sys.stderr)
            elif name in self._refused and is_on:
                self._fail(f"--{name}: {self._refused[name]}")
        return values

    def _split(self, words):
        """name -> text."""
        given = {}
        while words:
            word = words.pop(0)
            if not word.startswith("-") or word in ("-", "--"):
                self._fail(f"not a flag: {word!r}")
            name, equals, text = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            if name in _HELPS:
                self._usage()
            if name == "version" and text.lower() not in _FALSE:
                print(version_of(self._program))
                sys.exit(0)
            if name.startswith("no") and name not in self._names and name[2:] in self._names and not equals:
                name, equals, text = name[2:], "=", "false"
            if name not in self._names:
                self._fail(f"unknown flag --{name}; --help lists them")
            if not equals:
                text = self._following(name, words)
            given[name] = text
        return given

    def _following(self, name, words):
        """The value of a flag that came without one."""
        default = self._defaults.get(name)
        if isinstance(default, bool) or name in _LOGGING_BOOLS or (default is None and (not words or words[0].startswith("-"))):
            return "true"
        if not words:
            self._fail(f"--{name} lacks a value")
        return words.pop(0)

    def _value(self, name, text):
        if not isinstance(self._defaults[name], bool):
            return text
        if text.lower() not in _TRUE + _FALSE:
            self._fail(f"--{name} is true or false, not {text!r}")
        return text.lower() in _TRUE

    # ---- files
    def _read(self, path):
        """name -> text, of a file of JSON, or of YAML as far as it is lines of "name: value"."""
        try:
            with open(path, "rb") as file:
                content = file.read(_FILE_BYTES + 1)
            if len(content) > _FILE_BYTES:
                raise ValueError("longer than a megabyte")
            text = content.decode()
            pairs = self._of_json(text) if text.lstrip().startswith("{") else self._of_yaml(text)
        except OSError as e:
            self._fail(f"{path}: {e.strerror}")
        except (ValueError, RecursionError) as e:
            self._fail(f"{path}: {e}")
        for name in pairs:
            if name not in self._names or name == "config_path":
                self._fail(f"{path}: unknown flag {name!r}")
        return pairs

    @staticmethod
    def _of_json(text):
        pairs = {}
        for name, value in json.loads(text).items():
            if isinstance(value, (dict, list)):
                raise ValueError(f"{name} is neither text nor a number")
            pairs[name] = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        return pairs

    @staticmethod
    def _of_yaml(text):
        pairs = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#") or (line.strip() == "---" and not pairs):
                continue
            match = _LINE.fullmatch(line.rstrip())
            value = _plain(match[2] or "") if match else None
            if value is None:
                raise ValueError(f'line {number} is not "name: value"')
            pairs[match[1]] = value
        return pairs


def version_of(program):
    """What the program prints for --version."""
    return f"{program} of kvpool {__version__}"


def number(program, name, text, low, high):
    """An int of a flag, from low to high, or the end of the program."""
    if str(text).isdigit() and low <= int(text) <= high:
        return int(text)
    sys.exit(f"{program}: --{name} is {low} to {high}, not {text!r}")


def check_open(program, tokens, *places):
    """Warns of HTTP ports, each (host, port), that other hosts reach, if they ask for no token (tokens is None). KVPOOL_SECURITY=required ends the
    program instead."""
    found = " ".join(join_host(*at) for at in places if not at[0].startswith("127.") and at[0] not in ("::1", "localhost"))
    if tokens is not None or not found:
        return
    if os.environ.get("KVPOOL_SECURITY"):
        sys.exit(f"{program}: KVPOOL_SECURITY=required: {found} is not protected, and other hosts reach it. Give a token file in KVPOOL_TOKENS, "
                 "or a loopback address")
    logging.getLogger(program).warning("clients are not authenticated: every host that can connect here can use the HTTP port %s", found)
