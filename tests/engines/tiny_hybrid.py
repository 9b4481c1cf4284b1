# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny model with the tokenizer of tiny_model.py: tiny_hybrid.py KIND FOLDER. KIND is "other" (the Llama of
tiny_model.py with other weights), "window" (a Gemma 3 whose layers alternate between a window and full attention) or "conv"
(an LFM2 with convolutions beside attention)."""
import sys

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Lfm2Config, Lfm2ForCausalLM

import tiny_model

WINDOW_TOKENS = 128
SHAPE = dict(vocab_size=tiny_model.VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2, pad_token_id=2)


def window():
    return Gemma3ForCausalLM(Gemma3TextConfig(
        **SHAPE, head_dim=64, sliding_window=WINDOW_TOKENS, layer_types=["sliding_attention", "full_attention"] * 2))


def conv():
    return Lfm2ForCausalLM(Lfm2Config(
        **SHAPE, block_auto_adjust_ff_dim=False, conv_L_cache=3, conv_dim=256, layer_types=["conv", "full_attention"] * 2))


def with_weights(made, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for weights in made.parameters():
            if weights.dim() > 1:
                weights.normal_(0, tiny_model.WEIGHT_DEVIATION)
        if made.config.tie_word_embeddings:  # small, or the last token is repeated whatever the cache holds
            made.get_input_embeddings().weight.mul_(0.05)
    return made.to(torch.bfloat16)


if __name__ == "__main__":
    tiny_model.tokenizer().save_pretrained(sys.argv[2])
    made = {"other": tiny_model.model, "window": window, "conv": conv}[sys.argv[1]]()
    with_weights(made, 8).save_pretrained(sys.argv[2], safe_serialization=True)
