# SPDX-License-Identifier: Apache-2.0
"""Writes a Llama of two layers and its tokenizer, from a fixed seed and with no download: tiny_model.py FOLDER. The weights are
large enough that a wrong byte in the cache changes what is generated."""
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
WEIGHT_DEVIATION = 0.08
TEXT = ["a pool of memory keeps the blocks that attention has computed", "the quick brown fox jumps over the lazy dog",
        "0123456789 abcdefghijklmnopqrstuvwxyz"]


def tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(TEXT * 8, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>")


def model():
    torch.manual_seed(7)
    made = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2, pad_token_id=2,
        tie_word_embeddings=False))
    with torch.no_grad():
        for weights in made.parameters():
            if weights.dim() > 1:
                weights.normal_(0, WEIGHT_DEVIATION)
    return made.to(torch.bfloat16)


if __name__ == "__main__":
    tokenizer().save_pretrained(sys.argv[1])
    model().save_pretrained(sys.argv[1], safe_serialization=True)
