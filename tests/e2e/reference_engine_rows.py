# SPDX-License-Identifier: Apache-2.0
"""Where ours answers otherwise than the reference, on purpose: the table of test_python_engine_reference.py."""
from reference_row import TYPE_ERROR, Row, died, raised, value


def rows():
    return [
        # Of safety.
        Row(r"^e\.(transfer_sync_write\('127|register_memory\(A, N|unregister_memory\(A|batch_register_memory\(\[A\]|"
            r"batch_unregister_memory\(\[A\]|get_batch_transfer_status\(\[1\]|transfer_check_status\(1\))", value("-1"), died(),
            "an engine that was not initialized says so; there it takes the process with it"),
        Row(r"^wait\(e\.batch_transfer_async_write, '127\.0\.0\.1:1', ", value('"not begun"'), died(), "the same of a batch"),
        Row(r"^e\.(get_rpc_port\(\)|get_first_buffer_address\('127\.0\.0\.1:1'\)|allocate_managed_buffer\(8192\))$", value("0"), died(),
            "an engine that was not initialized has none; there it takes the process with it"),
        Row(r"^e\.get_notifies\(\)$", value(r"\[\]"), died(), "no messages came to it; there it takes the process with it"),
        Row(r"^e\.(transfer_check_status\((0|12345)\)|get_batch_transfer_status\(\[(0|12345)\]\)|write_bytes_to_buffer\(0, )", value("-1"), died(),
            "a batch, or an address, that is none is refused; there it takes the process with it"),
        Row(r"^e\.batch_transfer_sync_write\(P, \[A, A\], \[B, D\], ", "-1", '"memory"',
            "a batch of which a part cannot be is refused whole; there the rest is moved"),
        Row(r"^\(e\.register_memory\(C, 4096\), e\.transfer_sync_(read|write)\(P, C", "-1", "0",
            "local memory that begins in what is registered ends there; there a length that is too large is written over what lies behind"),
        Row(r"^e\.free_managed_buffer\((0|A), 10\)", "-1", "0", "what was not allocated cannot be freed; there nothing tells"),
        Row(r"^\(lambda at: \(e\.free_managed_buffer", "-1", "0", "a buffer is freed once; there nothing tells"),
        Row(r"^e\.write_bytes_to_buffer\(A, 'text', 40\)$", "-1", "0", "no more bytes are copied than there are; there what lies behind them"),
        Row(r"^e\.initialize\('127\.0\.0\.1', 'P2PHANDSHAKE', 'tcp', ''\)", "-1", "0",
            "an engine is initialized once; there the second call loses the first one's"),
        Row(r"^e\.read_bytes_from_buffer\(4096, 10\)", value(r'\{"bytes": ""\}'), died(), "where there is no memory there are no bytes"),
        Row(r"^e\.write_bytes_to_buffer\(4096, 'text', 4\)", value("-1"), died(), "memory that is not there is told"),
        Row(r"^e\.initialize\('127\.0\.0\.1', 'P2PHANDSHAKE', 'no such', ''\)", "-1", "0", "a protocol that is none is refused"),
        Row(r"^\(e\.register_memory\(0, 10\), ", "-1|-3", "0", "there is no memory at 0"),
        # Of what is said.
        Row(r"^e\.send_probe\('(127\.0\.0\.1:1)?'\)", "-1", "-10[12]",
            "a peer that does not answer is -1; there names and sockets have their own codes"),
        Row(r"^managed\(0, ", '"no memory"', r"\[true, 0\]", "no bytes are no memory"),
        # Of Python.
        Row(r"^managed\(-1, ", value('"no memory"'), TYPE_ERROR, "a size below 0 is no memory"),
        Row(r"^e\.(transfer_sync_write\(P, A, B, -1|register_memory\((-1, 10|C, -5)|get_batch_transfer_status\(\[-1\])", raised("OverflowError"),
            TYPE_ERROR, "a number out of range is said to be that"),
        Row(r"^e\.write_bytes_to_buffer\(A, 'text', -1\)", value("-1"), TYPE_ERROR, "a length below 0 is refused with a code"),
        Row(r"^e\.read_bytes_from_buffer\(A, -1\)", value(r'\{"bytes": ""\}'), TYPE_ERROR, "of a length below 0 there are no bytes"),
        Row(r"^e\.transfer_sync\(P, A, B, 300, 1\)", value("0"), TYPE_ERROR, "an opcode may be its number"),
        Row(r"^e\.transfer_sync\(P, A, B, 300, 7\)", value("-1"), TYPE_ERROR, "a number that is no opcode is refused with a code"),
        Row(r"^e\.batch_(transfer_sync_write\(P, 'text'|register_memory\('text')", value("-1"), TYPE_ERROR,
            "lists of other lengths are refused before they are looked into"),
    ]
