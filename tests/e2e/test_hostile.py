# SPDX-License-Identifier: Apache-2.0
"""What a hostile or careless neighbour can do (docs/adr/0026-strangers.md): a case for each way, from a raw socket, with what the
others lived through meanwhile: longest wait, failed calls, memory of the daemons.
"""
import threading
import time

import rawwire as w
from conftest import SLOW


class Bystander:
    """Another client that asks EXISTS for one digest again and again, over its own connection. .waits_s has how long each answer took,
    .failed how many calls got no answer."""

    def __init__(self, master):
        self.waits_s, self.failed = [], 0
        self._raw, _ = w.session(master, name="bystander")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        ask = w.frame(w.EXISTS, b"", bytes(16))
        while not self._over.is_set():
            began = time.monotonic()
            answer = self._raw.call(ask)
            if answer is None:
                self.failed += 1
                return
            self.waits_s.append(time.monotonic() - began)
            time.sleep(0.001)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._over.set()
        self._thread.join(30 * SLOW)

    def p99_s(self):
        return sorted(self.waits_s)[int(len(self.waits_s) * 0.99)]


# ---- 1. terms
# ---- 2. hash flooding
# ---- 3. turns of the master
# ---- 4. empty messages
# ---- 5. tenants
# ---- 6. descriptors of a large node
# ---- 7. big frames
# ---- 8. Unix paths
