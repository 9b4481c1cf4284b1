# SPDX-License-Identifier: Apache-2.0
"""The names that connectors import (mooncake.store), over a kvpool."""
