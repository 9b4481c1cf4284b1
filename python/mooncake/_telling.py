# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, in the log: no more of it than somebody can read."""
from time import monotonic

_SHOWN = 100  # characters
_WHY = 300
_INTERVAL_S = 1


def shown(text, most=_SHOWN):
    """A name as a line of a log shows it: others may have made it, of any length."""
    return text if len(text) <= most else text[:most] + "..."


def shown_why(error):
    """What an exception says, which may have the same name in it."""
    return shown(str(error), _WHY)


def shown_key(key):
    """The same of a key as a caller gave it, which may be of any kind."""
    return shown(repr(key[:_SHOWN + 1])) if isinstance(key, (str, bytes)) else f"a {type(key).__name__}"


class Teller:
    """What may come as fast as calls do. Of each kind the first is logged at once, and then one a second, which says how many
    were left out. Kinds are few: a name that is in a line is no part of its kind. There is no lock, which a forked child could find taken:
    of threads that come at once two may be told, or one not counted."""

    def __init__(self, log):
        self._log = log
        self._kinds = {}  # kind: (when one was logged last, how many were left out since)

    def error(self, kind, text, *args):
        self._tell(self._log.error, kind, text, args)

    def warning(self, kind, text, *args):
        self._tell(self._log.warning, kind, text, args)

    def _tell(self, write, kind, text, args):
        now = monotonic()
        last, left_out = self._kinds.get(kind, (now - _INTERVAL_S, 0))
        if now - last < _INTERVAL_S:
            self._kinds[kind] = last, left_out + 1
            return
        self._kinds[kind] = now, 0
        if left_out:
            text, args = f"{text} (%d more of the kind were left out before)", (*args, left_out)
        write(text, *args)
