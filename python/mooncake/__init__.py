# SPDX-License-Identifier: Apache-2.0
"""The names that connectors import (mooncake.store), over a kvpool."""
import kvpool as _kvpool  # warns if another wheel's files lie in this package  # noqa: F401
