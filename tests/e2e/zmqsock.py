# SPDX-License-Identifier: Apache-2.0
"""ZMQ sockets by libzmq itself: what publishers of KV events and subscribers need, and no package more."""
import ctypes
import ctypes.util
import time

XPUB, SUB, DEALER, ROUTER = 9, 2, 5, 6
_LINGER, _RCVMORE, _LAST_ENDPOINT, _SNDHWM, _SUBSCRIBE, _RCVHWM = 17, 13, 32, 23, 6, 24
_DONTWAIT, _SNDMORE, _POLLIN = 1, 2, 1
_lib = ctypes.CDLL(ctypes.util.find_library("zmq") or "libzmq.so.5", use_errno=True)
for _name, _result in (("ctx_new", ctypes.c_void_p), ("socket", ctypes.c_void_p), ("errno", ctypes.c_int), ("strerror", ctypes.c_char_p)):
    getattr(_lib, f"zmq_{_name}").restype = _result
_context = ctypes.c_void_p(_lib.zmq_ctx_new())


class Socket:
    """One thread at a time uses it."""

    def __init__(self, kind, endpoint="tcp://127.0.0.1:*", connects=False, waiting=100000):
        self.at = ctypes.c_void_p(_lib.zmq_socket(_context, kind))
        self._set(_LINGER, 0)
        self._set(_SNDHWM, 100000)
        self._set(_RCVHWM, waiting)
        if kind == SUB:
            assert _lib.zmq_setsockopt(self.at, _SUBSCRIBE, b"", ctypes.c_size_t(0)) == 0
        end = getattr(_lib, "zmq_connect" if connects else "zmq_bind")
        until = time.monotonic() + 5  # one that was closed here gives up its address a moment later
        while end(self.at, endpoint.encode()) != 0:
            assert time.monotonic() < until, _lib.zmq_strerror(_lib.zmq_errno())
            time.sleep(0.01)
        self.endpoint = endpoint if connects else self._text(_LAST_ENDPOINT)

    def _set(self, option, value):
        assert _lib.zmq_setsockopt(self.at, option, ctypes.byref(ctypes.c_int(value)), ctypes.c_size_t(4)) == 0

    def _text(self, option):
        text, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
        assert _lib.zmq_getsockopt(self.at, option, text, ctypes.byref(size)) == 0
        return text.value.decode()

    def send(self, *frames):
        for i, frame in enumerate(frames):
            more = _SNDMORE if i + 1 < len(frames) else 0
            if _lib.zmq_send(self.at, frame, ctypes.c_size_t(len(frame)), _DONTWAIT | more) < 0:
                return False
        return True

    def receive(self, timeout_ms):
        """The frames of a message, or None."""

        class Item(ctypes.Structure):
            _fields_ = [("socket", ctypes.c_void_p), ("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]

        item = Item(self.at, 0, _POLLIN, 0)
        if _lib.zmq_poll(ctypes.byref(item), 1, ctypes.c_long(timeout_ms)) <= 0:
            return None
        frames, more = [], True
        while more:
            room = ctypes.create_string_buffer(1 << 20)
            n = _lib.zmq_recv(self.at, room, ctypes.c_size_t(len(room)), _DONTWAIT)
            if n < 0:
                return None
            frames.append(room.raw[:n])
            value, size = ctypes.c_int(), ctypes.c_size_t(4)
            _lib.zmq_getsockopt(self.at, _RCVMORE, ctypes.byref(value), ctypes.byref(size))
            more = value.value != 0
        return frames

    def close(self):
        _lib.zmq_close(self.at)
