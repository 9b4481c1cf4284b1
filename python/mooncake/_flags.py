# SPDX-License-Identifier: Apache-2.0
"""The reference's command lines: --name=value, --name value, one dash or two, --flag and --noflag."""
import sys

_TRUE, _FALSE = ("true", "1", "yes", "t", "y"), ("false", "0", "no", "f", "n")


class Flags:
    """values: name -> text, of those given, over the defaults. A flag with a bool as default takes no following word."""

    def __init__(self, program, defaults, without_use=()):
        self._program = program
        self._defaults = defaults
        self._without_use = frozenset(without_use)

    def _fail(self, text):
        sys.exit(f"{self._program}: {text}")

    def _usage(self):
        print(f"usage: {self._program} [--flag=value ...]")
        for name, value in self._defaults.items():
            print(f"  --{name} (default {value!r})")
        print("Taken, and of no use to a pool: " + ", ".join(sorted(self._without_use)))
        sys.exit(0)

    def parse(self, words):
        values = dict(self._defaults)
        words = list(words)
        while words:
            word = words.pop(0)
            if not word.startswith("-") or word in ("-", "--"):
                self._fail(f"not a flag: {word!r}")
            name, given, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            if name in ("help", "h"):
                self._usage()
            if name.startswith("no") and name[2:] in self._defaults and not given:
                name, given, value = name[2:], "=", "false"
            if name in self._without_use:
                if not given and words and not words[0].startswith("-"):
                    words.pop(0)
                print(f"{self._program}: --{name} is of no use to a pool", file=sys.stderr)
                continue
            if name not in self._defaults:
                self._fail(f"unknown flag --{name}; --help lists them")
            values[name] = self._value(name, given, value, words)
        return values

    def _value(self, name, given, value, words):
        if isinstance(self._defaults[name], bool):
            value = value.lower() if given else "true"
            if value not in _TRUE + _FALSE:
                self._fail(f"--{name} is true or false, not {value!r}")
            return value in _TRUE
        if given:
            return value
        if not words:
            self._fail(f"--{name} lacks a value")
        return words.pop(0)


def number(program, name, text, low, high):
    """An int of a flag, from low to high, or the end of the program."""
    if str(text).isdigit() and low <= int(text) <= high:
        return int(text)
    sys.exit(f"{program}: --{name} is {low} to {high}, not {text!r}")
