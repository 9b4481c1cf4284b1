# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny model with the tokenizer of tiny_model.py: tiny_hybrid.py KIND FOLDER. KIND is "other" (the Llama of
tiny_model.py with other weights), "window" (a Gemma 3 whose layers alternate between a window and full attention) or "conv"
(an LFM2 with convolutions beside attention)."""
import sys

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Lfm2Config, Lfm2ForCausalLM

import tiny_model

SHAPE = dict(vocab_size=tiny_model.VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2, pad_token_id=2)
MODELS = {
    "other": tiny_model.model,
    "window": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, head_dim=64, sliding_window=128,
                                                         layer_types=["sliding_attention", "full_attention"] * 2)),
    "conv": lambda: Lfm2ForCausalLM(Lfm2Config(**SHAPE, block_auto_adjust_ff_dim=False, block_dim=256, block_ff_dim=512, conv_dim=256,
                                               conv_L_cache=3, layer_types=["conv", "full_attention"] * 2)),
}

if __name__ == "__main__":
    tiny_model.tokenizer().save_pretrained(sys.argv[2])
    made = MODELS[sys.argv[1]]()
    torch.manual_seed(8)
    with torch.no_grad():
        for weights in made.parameters():
            if weights.dim() > 1:
                weights.normal_(0, tiny_model.WEIGHT_DEVIATION)
        if made.config.tie_word_embeddings:  # small, or the last token is repeated whatever the cache holds
            made.get_input_embeddings().weight.mul_(0.05)
    made.to(torch.bfloat16).save_pretrained(sys.argv[2], safe_serialization=True)
