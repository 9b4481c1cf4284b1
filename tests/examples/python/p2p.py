#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Moves blocks from one process to another without a pool, as a prefill server hands its blocks to a decode server. The
parent registers memory. The child writes into this memory and then leaves a notice.

    python p2p.py
"""
import subprocess
import sys
import time

from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

LENGTH = 4 << 20


def start_engine():
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        sys.exit("the engine did not start; the log has the reason")
    return engine


def send(peer, address):
    """The child: writes LENGTH bytes to the peer, as two pieces that arrive in any order, then leaves the notice."""
    engine, half = start_engine(), LENGTH // 2
    block = engine.allocate_managed_buffer(LENGTH)
    engine.write_bytes_to_buffer(block, b"*" * LENGTH, LENGTH)
    notice = TransferNotify("request-1", "all blocks are written")
    err = engine.batch_transfer_sync(peer, [block, block + half], [address, address + half], [half, half], TransferOpcode.Write, notify=notice)
    return 0 if err == 0 else 1


def main():
    engine = start_engine()
    address = engine.allocate_managed_buffer(LENGTH)  # registered, and mapped by peers of this host
    peer = f"127.0.0.1:{engine.get_rpc_port()}"
    child = subprocess.Popen([sys.executable, __file__, peer, str(address)])
    end = time.monotonic() + 20
    notices = []
    while not notices and time.monotonic() < end:
        notices = engine.get_notifies()
        time.sleep(0.01)
    is_right = engine.read_bytes_from_buffer(address, LENGTH) == b"*" * LENGTH
    for notice in notices:
        print(f"{notice.name}: {notice.msg}; the bytes are {'right' if is_right else 'WRONG'}")
    return child.wait(20) or not (notices and is_right)


if __name__ == "__main__":
    sys.exit(send(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 2 else main())
