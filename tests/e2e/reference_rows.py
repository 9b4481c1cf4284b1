# SPDX-License-Identifier: Apache-2.0
"""Where ours answers otherwise than the reference, on purpose: the table of test_python_reference.py. A row that no call of a run
uses fails the test."""
import re


class Row:
    """One difference: in calls that match, ours against theirs (values as JSON; regular expressions, of all of it), and why."""

    def __init__(self, calls, ours, theirs, reason):
        self.calls, self.ours, self.theirs = re.compile(calls), re.compile(ours), re.compile(theirs)
        self.reason = reason
        self.uses = 0

    def covers(self, call, ours, theirs):
        return bool(self.calls.search(call) and self.ours.fullmatch(ours) and self.theirs.fullmatch(theirs))

    def __repr__(self):
        return f"Row({self.calls.pattern!r}, {self.ours.pattern!r}, {self.theirs.pattern!r}): {self.reason}"


def rows():
    number = r"-?\d+"
    replica = r'\{"replica": \[[^]]*\]\}'
    type_error = r'\{"raised": "TypeError"\}'
    return [
        # Of safety.
        Row(r"", r".*", r'\{"died": "SIGSEGV"\}',
            "a store that was not set up, or was closed, answers; there it takes the process with it"),
        Row(r"\bC\b", "-600", r"0|-704|\d+", "memory has to be registered, by TCP, too; there only RDMA asks for it"),
        Row(r"A \+ N - 10", "-600", "0", "a buffer must not go beyond what is registered"),
        Row(r"\[::2\]", r'\{"raised": "BufferError"\}', r'\{"value": \[.*, 0\]\}',
            "memory with gaps is refused; there other bytes are stored"),
        Row(r"array\.array", r'\{"bytes": "010000000200000003000000"\}', r'\{"bytes": "010000"\}',
            "an array's bytes are stored; there as many bytes as it has items"),
        Row(r"remove_by_regex\('', True\)", "-600", number, "an empty pattern removes nothing; there it removes all"),
        # Of what is there.
        Row(r"remove|batch_remove", "0", "-706",
            "a get does not hold an object: its bytes stay until it is done, however long that takes"),
        Row(r"batch_replica_clear", r"\[.*\]", r"\[.*\]", "a get does not hold an object (the keys of those that went)"),
        Row(r"remove_(all|by_regex)", number, number, "a get does not hold an object (the number of those that went)"),
        Row(r"put_from\('k\d', A, 0\)", "-600", "0", "no bytes are no object"),
        Row(r"'L' \* 5000", "-600", "0", "a key has 1,024 bytes at most"),
        Row(r"bytes\(\d+ << 20\)", "0", "-600", "no local buffer bounds an object: it goes from the caller's memory"),
        Row(r"put_batch", "1", "0",
            "of a batch each object is put or not for itself; there one that is empty keeps all from being put"),
        Row(r"'twice'", "-703|10", "0|20", "of two objects with one key in a batch the first is put; there the second, too"),
        Row(r"get_into.*\b65536\b|get_into_multi_buffers", r"\d+", "-800", "buffers may be larger than the object, in pieces, too"),
        Row(r"get_into.*\[10, 0\]|\[\[\]\]|\[\[A, A \+ 100\]\], \[\[10\]\]", "-600", "-704|-800",
            "buffers of no bytes, and lists of other lengths, are refused before anything is asked"),
        Row(r"get_into_ranges", r'-704|\{"value": \[\[\[-704\]\]\]\}', f"-600|{type_error}",
            "of an object that is not there it is not looked at what was to be read, and where to"),
        Row(r"get_replica_desc", rf"\[{replica}\]", rf"\[{replica}, {replica}\]",
            "copies lie on different hosts, and here is one; there two segments are enough"),
        Row(r"got\(", r'\{"bytes": .*\}', "null", "buffers may be larger than the object, in pieces, too (the bytes)"),
        Row(r"metadata\('k\d', A, A \+ 500, 0, 10\)", "1", "0", "metadata alone is an object; there it says 0 and stores nothing"),
        Row(r"prefer_alloc_in_same_node", "0", "-600", "it changes nothing here; there it is for puts of several buffers alone"),
        Row(r"get_batch\(\[\]\)", r"\[\]", r'\[\{"bytes": ""\}\]', "to no keys there are no values"),
        Row(r"put_from_with_metadata\(''", "-600", "600", "an error is negative"),
        Row(r"setup\(0\), setup\(0\)", "-600", "0", "a store is set up once; there the second call loses the first one's pool"),
        Row(r"^s\.batch_(get|put)_session_", r"\[-600\]|-600", r"\[\]|-1",
            "a store that was not set up says so, of each key; there of none, and once with another code"),
        Row(r"^leased\(1 << 20, 1 << 21", r'\{"raised": "RuntimeError"\}', r'\{"value": .*\}',
            "max_bytes bounds what a BufferPool leases; there a region may be larger"),
        # Of Python.
        Row(r"-\d|1 << 64", r'\{"value": -600\}|\{"raised": "(Overflow|Value)Error"\}', type_error,
            "a number out of range is said to be that"),
        Row(r"udc80", r'\{"raised": "UnicodeEncodeError"\}', type_error, "a str that is no UTF-8 is said to be that"),
        Row(r"put.*, None\)", r'\{"value": (0|\[\[0\], \[0\]\])\}', type_error, "None is the default config"),
        Row(r"key=", r'\{"value".*', type_error, "arguments have names"),
        Row(r"'yes'", r'\{"value".*', type_error, "force is whatever is true"),
        Row(r"multi_buffers\([^,]*, \[A\]", r'\{"value".*', type_error, "a buffer alone does for a list of one"),
    ]
