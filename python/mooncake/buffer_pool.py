# SPDX-License-Identifier: Apache-2.0
"""mooncake.buffer_pool: BufferPool by the names that programs import it from."""
from .store import BufferPool, RegisteredBufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]
