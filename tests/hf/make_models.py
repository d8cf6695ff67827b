#!/usr/bin/env python3
"""Makes small random models with transformers, to be read by Tetra.

  make_models.py OUT_DIR [NAME...]      all of them without names; --list prints the names

Each becomes a folder OUT_DIR/NAME with config.json, weights, and probe.json: {"dtype", "tokens" [B][S],
"logits" [B][S][V]}, what transformers computes in float64 throughout from the stored weights.
"""
import json
import os
import sys

from hf import FLOAT64, build, logits_of, torch, transformers

SMALL = dict(vocab_size=97, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2)
GPT2 = dict(vocab_size=97, n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.2, bos_token_id=0,
            eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
LINEAR = dict(rope_type="linear", rope_theta=5000.0, factor=2.5)

# name: (configuration class, its fields, stored type, shard size)
CASES = {
    "llama": ("LlamaConfig", SMALL, "float32", None),
    "llama_bias": ("LlamaConfig", SMALL | dict(attention_bias=True, mlp_bias=True), "float32", None),
    "llama_tied_head_dim": ("LlamaConfig", SMALL | dict(tie_word_embeddings=True, head_dim=6), "float32", None),
    "llama_llama3_rope": ("LlamaConfig", SMALL | dict(rope_parameters=LLAMA3), "float32", None),
    "llama_linear_rope": ("LlamaConfig", SMALL | dict(rope_parameters=LINEAR), "float32", None),
    "llama_bf16": ("LlamaConfig", SMALL, "bfloat16", None),
    "llama_shards": ("LlamaConfig", SMALL, "float64", "20KB"),
    "mistral": ("MistralConfig", SMALL | dict(sliding_window=None), "float32", None),
    "mistral_window": ("MistralConfig", SMALL | dict(sliding_window=48), "float32", None),
    "qwen2": ("Qwen2Config", SMALL, "float32", None),
    "qwen2_tied": ("Qwen2Config", SMALL | dict(tie_word_embeddings=True), "float16", None),
    "qwen3": ("Qwen3Config", SMALL | dict(head_dim=16), "float32", None),
    "qwen3_bias": ("Qwen3Config", SMALL | dict(head_dim=10, attention_bias=True), "float32", None),
    "gpt2": ("GPT2Config", GPT2, "float32", None),
    "gpt2_scaled": ("GPT2Config", GPT2 | dict(scale_attn_by_inverse_layer_idx=True, n_inner=40,
                                              activation_function="gelu"), "float32", None),
    "gpt2_unscaled": ("GPT2Config", GPT2 | dict(scale_attn_weights=False, tie_word_embeddings=False), "float64", None),
}


def make(name, out):
    config_class, fields, dtype, shard_size = CASES[name]
    torch.manual_seed(1234)
    model = build(getattr(transformers, config_class)(**fields))
    with torch.no_grad():  # norms away from 1 and biases away from 0, so that a slip in either shows
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(0.3 * torch.randn_like(parameter))
    folder = os.path.join(out, name)
    model.to(getattr(torch, dtype)).save_pretrained(folder, **({"max_shard_size": shard_size} if shard_size else {}))
    tokens = torch.randint(0, fields["vocab_size"], (2, 40), generator=torch.Generator().manual_seed(5)).tolist()
    logits = logits_of(folder, tokens, FLOAT64)
    with open(os.path.join(folder, "probe.json"), "w") as file:
        json.dump({"dtype": "float64", "tokens": tokens, "logits": logits.tolist()}, file)
    print(f"made {name}: {sorted(os.listdir(folder))}")


def main():
    if "--list" in sys.argv:
        print("\n".join(CASES))
        return
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for name in sys.argv[2:] or CASES:
        make(name, sys.argv[1])


if __name__ == "__main__":
    main()
