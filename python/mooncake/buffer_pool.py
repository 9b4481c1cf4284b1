# SPDX-License-Identifier: Apache-2.0
"""mooncake.buffer_pool: BufferPool, under the names that programs import."""
from .store import BufferPool, RegisteredBufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]
