# SPDX-License-Identifier: Apache-2.0
"""The log of the programs of this package: logfmt, or JSON with KVPOOL_LOG_FORMAT=json, one line a record, as the daemons write it.
Modules that a program imports use the loggers of that program, and format nothing."""
import json
import logging
import os
import re
import time

_LEVELS = {"CRITICAL": ("error", 3), "ERROR": ("error", 3), "WARNING": ("warn", 4), "INFO": ("info", 6), "DEBUG": ("debug", 7)}
_BARE = re.compile(r'[^\x00-\x20\x7f-\U0010ffff"=\\]+')
_VALUE_MAX = 1024  # characters; a traceback is longer, and its end says most


def _is_journal():
    """Returns whether standard error is a stream of journald, which adds the time."""
    try:
        at = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{at.st_dev}:{at.st_ino}"


def _quote(value):
    text = json.dumps(value.encode("utf-8", "replace").decode(), ensure_ascii=False)
    return re.sub("[\x7f-\x9f]", lambda m: f"\\u{ord(m.group()):04x}", text)


class Formatter(logging.Formatter):
    """Formats a record as one line with time, level, part, msg, the texts in its dict `pairs`, and, for an exception, error."""

    def __init__(self, is_json, is_journal):
        super().__init__()
        self._is_json, self._is_journal = is_json, is_journal

    def format(self, record):
        level, priority = _LEVELS.get(record.levelname, ("info", 6))
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        pairs = {} if self._is_journal else {"time": when}
        pairs.update(level=level, part=record.name, msg=record.getMessage()[:_VALUE_MAX], **getattr(record, "pairs", {}))
        if record.exc_info:
            pairs["error"] = self.formatException(record.exc_info)[-_VALUE_MAX:]
        if self._is_json:
            line = "{" + ",".join(f"{_quote(key)}:{_quote(value)}" for key, value in pairs.items()) + "}"
        else:
            line = " ".join(f"{key}={value if _BARE.fullmatch(value) else _quote(value)}" for key, value in pairs.items())
        return f"<{priority}>{line}" if self._is_journal else line


def start(level=logging.INFO):
    """Sets the format and the level of this process's log. Called once, by a program's main()."""
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter(os.environ.get("KVPOOL_LOG_FORMAT") == "json", _is_journal()))
    logging.basicConfig(level=level, handlers=[handler])
