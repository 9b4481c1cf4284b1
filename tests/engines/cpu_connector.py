# SPDX-License-Identifier: Apache-2.0
"""Upstream's MooncakeConnector where there is no accelerator: its worker asks torch for the number of the present one, which raises
there. All else but its statistics is upstream's. Loaded through kv_connector_module_path."""
import torch

try:
    torch.accelerator.current_device_index()
except RuntimeError:
    torch.accelerator.current_device_index = lambda: 0

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import MooncakeConnector  # noqa: E402


class CpuMooncakeConnector(MooncakeConnector):
    """Upstream's, by a name of its own."""

    def get_kv_connector_stats(self):
        """None: in vLLM 0.32.0 upstream's within a MultiConnector ends the server with its first transfer, as it has statistics and no metrics for them."""
        return None
