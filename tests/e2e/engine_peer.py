# SPDX-License-Identifier: Apache-2.0
"""The other process of test_python_engine.py: an engine with one buffer, that does what lines on its standard input say and answers
each with a line of JSON."""
import json
import sys

from mooncake.engine import TransferEngine

PROTOCOL = "tcp"


def main():
    host, size, metadata = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    engine = TransferEngine()
    assert engine.initialize(host, metadata, PROTOCOL, "") == 0
    buffer = engine.allocate_managed_buffer(size)
    assert buffer != 0

    def answer(value):
        print(json.dumps(value), flush=True)

    answer({"port": engine.get_rpc_port(), "address": buffer})
    for line in sys.stdin:
        verb, *args = json.loads(line)
        if verb == "bytes":
            answer(engine.read_bytes_from_buffer(buffer + args[0], args[1]).hex())
        elif verb == "fill":
            answer(engine.write_bytes_to_buffer(buffer, bytes([args[0]]) * size, size))
        elif verb == "is_all":
            answer(engine.read_bytes_from_buffer(buffer, size) == bytes([args[0]]) * size)
        elif verb == "unregister":
            answer(engine.unregister_memory(buffer))
        elif verb == "register":
            answer(engine.register_memory(buffer, size))
        elif verb == "notifies":
            answer(engine.get_notifies())


if __name__ == "__main__":
    main()
