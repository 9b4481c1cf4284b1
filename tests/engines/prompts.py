# SPDX-License-Identifier: Apache-2.0
"""What vllm_cases.py and the engines that it starts have in common."""
BLOCK_TOKENS = 32
PROMPTS = ["the quick brown fox jumps over the lazy dog " * 24, "a pool keeps the blocks that attention computed " * 16 + "again"]
