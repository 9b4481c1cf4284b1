# SPDX-License-Identifier: Apache-2.0
"""A row of the tables of what ours answers otherwise than the reference on purpose, and what such rows are made of."""
import json
import re


class Row:
    """One difference: in calls that match, ours against theirs (values as JSON; regular expressions, of all of it), and why.
    holds(ours, theirs): what more is true of the two values."""

    def __init__(self, calls, ours, theirs, reason, holds=None):
        self.calls, self.ours, self.theirs = re.compile(calls), re.compile(ours), re.compile(theirs)
        self.reason, self.holds = reason, holds
        self.uses = 0

    def covers(self, call, ours, theirs):
        return bool(self.calls.search(call) and self.ours.fullmatch(ours) and self.theirs.fullmatch(theirs) and
                    (self.holds is None or self.holds(json.loads(ours), json.loads(theirs))))

    def __repr__(self):
        return f"Row({self.calls.pattern!r}, {self.ours.pattern!r}, {self.theirs.pattern!r}): {self.reason}"


def value(text):
    return rf'\{{"value": (?:{text})\}}'


def raised(name):
    return rf'\{{"raised": "{name}"\}}'


def died(signal="SIGSEGV"):
    return rf'\{{"died": "{signal}"\}}'


TYPE_ERROR = raised("TypeError")


def is_more(ours, theirs):
    """Of numbers, or of lists of keys in one order, where some are missing."""
    if type(ours) is int:
        return ours > theirs >= 0
    return len(ours) > len(theirs) and [key for key in ours if key in theirs] == theirs
