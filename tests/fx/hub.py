"""Small configurations of architectures that users know, built by transformers with random weights.

Nothing is downloaded: weights are drawn as each class initialises its own. Norms get a spread, as trained
ones have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers.cache_utils import DynamicCache

Call = tuple[nn.Module, tuple[Any, ...]]

_TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
_IMAGE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
}
_GROUPED = {**_TEXT, "num_key_value_heads": 2}
_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 100}
_SOUND = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_dim": (32, 32, 32),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_WHISPER = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": 100,
    "num_mel_bins": 16,
    "max_source_positions": 20,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


class Takes(nn.Module):
    """A model whose inputs are named and whose first result is the output."""

    def __init__(self, inner: nn.Module, *names: str, **fixed: Any) -> None:
        super().__init__()
        self.inner, self.names, self.fixed = inner, names, fixed

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(**dict(zip(self.names, inputs, strict=True)), **self.fixed)[0]


class Cached(nn.Module):
    """A decoder with keys and values of earlier steps."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor, past: list[torch.Tensor]) -> dict[str, Any]:
        cache = DynamicCache([(past[i], past[i + 1]) for i in range(0, len(past), 2)])
        result = self.inner(input_ids=input_ids, past_key_values=cache, use_cache=True)
        present = [t for layer in result.past_key_values.layers for t in (layer.keys, layer.values)]
        return {"logits": result.logits, "present": present}


def _ids(length: int) -> torch.Tensor:
    return torch.randint(3, 100, (2, length))


def _mask(length: int) -> torch.Tensor:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length - 3 :] = 0
    return mask


def _decoder(config: Any, **words: Any) -> Call:
    model = hf.AutoModelForCausalLM.from_config(config, **words)
    return Takes(model, "input_ids", use_cache=False), (_ids(12),)


def _cached(config: Any, heads: int) -> Call:
    model = hf.AutoModelForCausalLM.from_config(config)
    return Cached(model), (_ids(3), [torch.randn(2, heads, 5, 16) for _ in range(4)])


def _encoder(config: Any, **words: Any) -> Call:
    model = hf.AutoModel.from_config(config, **words)
    return Takes(model, "input_ids", "attention_mask"), (_ids(12), _mask(12))


def _t5(**words: Any) -> Call:
    model = hf.T5ForConditionalGeneration._from_config(hf.T5Config(**_T5), **words)
    names = ("input_ids", "attention_mask", "decoder_input_ids")
    return Takes(model, *names, use_cache=False), (_ids(12), _mask(12), _ids(5))


def _clip() -> Call:
    config = hf.CLIPConfig(
        text_config={**_TEXT, "projection_dim": 32, "eos_token_id": 2},
        vision_config=_IMAGE,
        projection_dim=32,
    )
    names = ("input_ids", "pixel_values", "attention_mask")
    return Takes(hf.CLIPModel(config), *names), (_ids(12), torch.randn(2, 3, 32, 32), _mask(12))


def _vision(model: nn.Module, side: int) -> Call:
    return Takes(model, "pixel_values"), (torch.randn(2, 3, side, side),)


_MAKERS: dict[str, Callable[[], Call]] = {
    "gpt2": lambda: _decoder(hf.GPT2Config(**_GPT2)),
    "gpt2-cached": lambda: _cached(hf.GPT2Config(**_GPT2), heads=4),
    "llama": lambda: _decoder(hf.LlamaConfig(**_GROUPED)),
    "llama-cached": lambda: _cached(hf.LlamaConfig(**_GROUPED), heads=2),
    "mistral": lambda: _decoder(hf.MistralConfig(**_GROUPED, sliding_window=8)),
    "qwen2": lambda: _decoder(hf.Qwen2Config(**_GROUPED)),
    "qwen3": lambda: _decoder(hf.Qwen3Config(**_GROUPED, head_dim=16)),
    "gemma": lambda: _decoder(hf.GemmaConfig(**_GROUPED, head_dim=16)),
    "gemma2": lambda: _decoder(hf.Gemma2Config(**_GROUPED, head_dim=16), attn_implementation="eager"),
    "phi": lambda: _decoder(hf.PhiConfig(**_GROUPED)),
    "opt": lambda: _decoder(
        hf.OPTConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=128,
            vocab_size=100,
            max_position_embeddings=64,
            word_embed_proj_dim=64,
        )
    ),
    "bloom": lambda: _decoder(hf.BloomConfig(hidden_size=64, n_layer=2, n_head=4, vocab_size=100)),
    "falcon": lambda: _decoder(
        hf.FalconConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=100)
    ),
    "mamba": lambda: _decoder(
        hf.MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=100, state_size=8)
    ),
    "bert": lambda: _encoder(hf.BertConfig(**_TEXT)),
    "bert-eager": lambda: _encoder(hf.BertConfig(**_TEXT), attn_implementation="eager"),
    "distilbert": lambda: _encoder(
        hf.DistilBertConfig(
            dim=64, n_layers=2, n_heads=4, hidden_dim=128, vocab_size=100, max_position_embeddings=64
        )
    ),
    "roberta": lambda: _encoder(hf.RobertaConfig(**_TEXT)),
    "deberta": lambda: _encoder(
        hf.DebertaV2Config(
            **_TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=16
        )
    ),
    "t5": _t5,
    "t5-eager": lambda: _t5(attn_implementation="eager"),
    "whisper-encoder": lambda: (
        Takes(hf.WhisperModel(hf.WhisperConfig(**_WHISPER)).encoder, "input_features"),
        (torch.randn(2, 16, 40),),
    ),
    "wav2vec2": lambda: (
        Takes(hf.Wav2Vec2Model(hf.Wav2Vec2Config(**_SOUND)), "input_values"),
        (torch.randn(2, 800),),
    ),
    "hubert": lambda: (
        Takes(hf.HubertModel(hf.HubertConfig(**_SOUND)), "input_values"),
        (torch.randn(2, 800),),
    ),
    "vit": lambda: _vision(hf.ViTModel(hf.ViTConfig(**_IMAGE)), 32),
    "clip": _clip,
    "convnext": lambda: _vision(
        hf.ConvNextModel(hf.ConvNextConfig(hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 2, 1])), 64
    ),
    "resnet": lambda: _vision(
        hf.ResNetForImageClassification(
            hf.ResNetConfig(
                embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], layer_type="basic"
            )
        ),
        64,
    ),
    "segformer": lambda: _vision(
        hf.SegformerForSemanticSegmentation(
            hf.SegformerConfig(hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1], decoder_hidden_size=32)
        ),
        64,
    ),
    "swin": lambda: _vision(
        hf.SwinModel(
            hf.SwinConfig(
                image_size=32, patch_size=4, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4
            )
        ),
        32,
    ),
}
ARCHITECTURES = tuple(_MAKERS)


def build(name: str) -> Call:
    """A model of the architecture in eval mode and its example inputs, always the same."""
    torch.manual_seed(7)
    model, inputs = _MAKERS[name]()
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if "Norm" in type(module).__name__ and isinstance(weight, nn.Parameter):
            with torch.no_grad():
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.15)
    return model.eval(), inputs
