"""Quick layers give what transformers' own layers give, to float32's rounding, and leave none out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from runner.kernels import cpu_layers
from runner.kernels.cpu_layers import JoinedLinear, OneCallNorm, PackedLinear, can_pack, products, quicken
from runner.models import MODELS
from runner.weights import build_model

NAMES = ["tiny-gemma3-vl", "tiny-qwen3", "tiny-qwen2.5-vl"]


def text_of(name: str) -> Any:
    model = build_model(MODELS[name])
    return model.model.language_model if MODELS[name].is_multimodal else model.model


def hidden_of(text: Any, num_tokens: int, seed: int) -> torch.Tensor:
    given = torch.randn(1, num_tokens, text.config.hidden_size, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return text(inputs_embeds=given, use_cache=False).last_hidden_state


@pytest.mark.skipif(not can_pack(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_tokens", [1, 5, 64])
def test_hidden_states_are_the_same_to_rounding(name: str, num_tokens: int) -> None:
    text = text_of(name)
    expected = hidden_of(text, num_tokens, seed=3)
    quicken(text)
    found = hidden_of(text, num_tokens, seed=3)
    assert float((found - expected).abs().max()) < 2e-5 * float(expected.std())
    assert not torch.equal(found, hidden_of(text, num_tokens, seed=4)), "yesterday's product"


@pytest.mark.skipif(not can_pack(), reason="this torch has no oneDNN")
def test_every_layer_is_quick_and_doing_it_twice_changes_nothing() -> None:
    text = text_of("tiny-gemma3-vl")
    weights = sum(m.weight.numel() for m in text.layers.modules() if type(m) is nn.Linear)
    quicken(text)
    kinds = [type(module).__name__ for module in text.modules()]
    assert "Linear" not in kinds and "Gemma3RMSNorm" not in kinds
    assert kinds.count("JoinedLinear") == 5 * len(text.layers)
    assert sum(one.inner * one.outer for one in products(text)) == weights
    before = hidden_of(text, 4, seed=1)
    quicken(text)
    assert torch.equal(before, hidden_of(text, 4, seed=1))


@pytest.mark.skipif(not can_pack(), reason="this torch has no oneDNN")
def test_biases_are_joined_as_well() -> None:
    """Qwen2.5 has them on queries, keys and values; all zero in a preset of random weights."""
    text = text_of("tiny-qwen2.5-vl")
    for layer in text.layers:
        for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            linear.bias.copy_(torch.randn(linear.bias.shape, generator=torch.Generator().manual_seed(7)))
    expected = hidden_of(text, 6, seed=3)
    quicken(text)
    assert float((hidden_of(text, 6, seed=3) - expected).abs().max()) < 2e-5 * float(expected.std())


def test_nothing_of_an_input_is_kept_once_all_parts_are_taken() -> None:
    if not can_pack():
        pytest.skip("this torch has no oneDNN")
    linears = [nn.Linear(8, width, bias=False) for width in (4, 2)]
    joined = cpu_layers._Joined(linears)
    first, second = JoinedLinear(joined, 0), JoinedLinear(joined, 1)
    for seed in range(3):
        given = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))
        with torch.inference_mode():
            assert torch.allclose(first(given), linears[0](given), atol=1e-6)
            assert torch.allclose(second(given), linears[1](given), atol=1e-6)
        assert joined._given is None and joined._parts == ()


def test_without_onednn_the_layers_stay_and_norms_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_layers, "can_pack", lambda: False)
    text = text_of("tiny-qwen3")
    expected = hidden_of(text, 5, seed=3)
    quicken(text)
    assert not any(isinstance(module, (PackedLinear, JoinedLinear)) for module in text.modules())
    assert any(isinstance(module, OneCallNorm) for module in text.modules())
    assert float((hidden_of(text, 5, seed=3) - expected).abs().max()) < 2e-5 * float(expected.std())


def test_llamas_layers_are_known_too() -> None:
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    text = LlamaForCausalLM(config).requires_grad_(False).model.eval()
    quick = copy.deepcopy(text)
    quicken(quick)
    expected, found = hidden_of(text, 7, seed=2), hidden_of(quick, 7, seed=2)
    assert float((found - expected).abs().max()) < 2e-5 * float(expected.std())
    assert not any(type(module).__name__ == "LlamaRMSNorm" for module in quick.modules())
