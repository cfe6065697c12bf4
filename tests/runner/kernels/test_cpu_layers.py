"""Quick layers give what transformers' own layers give, to float32's rounding, and leave none out."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from runner.config import RunnerConfig
from runner.kernels import cpu_layers
from runner.kernels.attention import ATTENTION_NAME
from runner.kernels.cpu_layers import products, quicken
from runner.kernels.geometry import StepGeometry, StepLimits
from runner.kernels.kvcache import KVCache
from runner.kernels.packed_linear import PackedLinear, can_pack
from runner.kernels.quick_layer import QuickLayer
from runner.kernels.quick_norm import QuickNorm
from runner.kernels.sdpa_attention import SdpaAttention
from runner.models import MODELS
from runner.weights import build_model

NAMES = ["tiny-gemma3-vl", "tiny-qwen3", "tiny-qwen2.5-vl"]


def text_of(name: str) -> Any:
    model = build_model(MODELS[name])
    return model.model.language_model if MODELS[name].is_multimodal else model.model


def hidden_of(text: Any, num_tokens: int, seed: int, **changes: Any) -> torch.Tensor:
    given = torch.randn(1, num_tokens, text.config.hidden_size, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return text(inputs_embeds=given, use_cache=False, **changes).last_hidden_state


def quick_hidden_of(text: Any, num_tokens: int, seed: int, **changes: Any) -> torch.Tensor:
    """Of a quickened model, whose attention is the runner's: one row of all tokens in an empty cache."""
    config = text.config
    shape = SimpleNamespace(
        num_layers=config.num_hidden_layers,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
    )
    sizes = RunnerConfig(num_blocks=8, block_size=16)
    cache = KVCache(cast(Any, shape), sizes, torch.float32, torch.device("cpu"))
    positions = torch.arange(num_tokens)
    geometry = StepGeometry(
        starts=torch.tensor([0, num_tokens]),
        first=torch.tensor([0]),
        ends=torch.tensor([num_tokens]),
        block_table=torch.arange(8)[None],
        slot_mapping=positions,
        rope_positions=positions[None],
    )
    limits = StepLimits(num_tokens, num_tokens, int(num_tokens == 1))
    step = SdpaAttention().begin(geometry, cache, limits)
    text.set_attn_implementation(ATTENTION_NAME)
    masks = {"full_attention": None, "sliding_attention": None}
    return hidden_of(text, num_tokens, seed, attention_mask=masks, paged_step=step, **changes)


@pytest.mark.skipif(not can_pack(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_tokens", [1, 5, 64])
def test_hidden_states_are_the_same_to_rounding(name: str, num_tokens: int) -> None:
    text = text_of(name)
    expected = hidden_of(text, num_tokens, seed=3)
    quicken(text)
    assert all(isinstance(layer, QuickLayer) for layer in text.layers)
    found = quick_hidden_of(text, num_tokens, seed=3)
    assert float((found - expected).abs().max()) < 2e-5 * float(expected.std())


@pytest.mark.skipif(not can_pack(), reason="this torch has no oneDNN")
def test_every_layer_is_quick_and_doing_it_twice_changes_nothing() -> None:
    text = text_of("tiny-gemma3-vl")
    weights = sum(m.weight.numel() for m in text.layers.modules() if type(m) is nn.Linear)
    quicken(text)
    kinds = [type(module).__name__ for module in text.modules()]
    assert "Linear" not in kinds and "Gemma3RMSNorm" not in kinds
    assert kinds.count("PackedLinear") == 4 * len(text.layers)
    assert sum(one.inner * one.outer for one in products(text)) == weights
    before = quick_hidden_of(text, 4, seed=1)
    quicken(text)
    assert torch.equal(before, quick_hidden_of(text, 4, seed=1))


@pytest.mark.skipif(not can_pack(), reason="this torch has no oneDNN")
def test_biases_are_joined_as_well() -> None:
    """Qwen2.5 has them on queries, keys and values; all zero in a preset of random weights."""
    text = text_of("tiny-qwen2.5-vl")
    for layer in text.layers:
        for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            linear.bias.copy_(torch.randn(linear.bias.shape, generator=torch.Generator().manual_seed(7)))
    expected = hidden_of(text, 6, seed=3)
    quicken(text)
    assert float((quick_hidden_of(text, 6, seed=3) - expected).abs().max()) < 2e-5 * float(expected.std())


@pytest.mark.skipif(not can_pack(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("name", ["tiny-gemma3-vl", "tiny-qwen3"])
def test_norms_of_queries_keys_and_blocks_are_each_layers_own(name: str) -> None:
    """A preset's are all alike: of random weights every one has its place."""
    text = text_of(name)
    draw = torch.Generator().manual_seed(11)
    for module in text.modules():
        if QuickNorm.knows(module):
            module.weight.copy_(1 + 0.3 * torch.randn(module.weight.shape, generator=draw))
    expected = hidden_of(text, 6, seed=3)
    quicken(text)
    assert float((quick_hidden_of(text, 6, seed=3) - expected).abs().max()) < 2e-5 * float(expected.std())


def test_a_norm_of_values_as_small_as_its_epsilon_is_the_layers() -> None:
    text = text_of("tiny-qwen3")
    norm = text.layers[0].input_layernorm
    for size in (0.0, 1e-6, 1e-3, 1.0, 1e4):
        given = size * torch.randn((1, 5, norm.weight.shape[0]), generator=torch.Generator().manual_seed(2))
        torch.testing.assert_close(QuickNorm.of(norm)(given), norm(given), rtol=2e-6, atol=0.0)


def test_a_layer_of_an_unknown_class_stays_and_its_parts_are_quick() -> None:
    if not can_pack():
        pytest.skip("this torch has no oneDNN")
    text = text_of("tiny-qwen3")

    class OtherLayer(type(text.layers[0])):  # type: ignore[misc]
        pass

    for layer in text.layers:
        layer.__class__ = OtherLayer
    expected = hidden_of(text, 5, seed=3)
    quicken(text)
    assert not any(isinstance(module, QuickLayer) for module in text.modules())
    assert "Linear" not in {type(module).__name__ for module in text.modules()}
    assert float((hidden_of(text, 5, seed=3) - expected).abs().max()) < 2e-5 * float(expected.std())


def test_without_onednn_the_layers_stay_and_norms_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_layers, "can_pack", lambda: False)
    text = text_of("tiny-qwen3")
    expected = hidden_of(text, 5, seed=3)
    quicken(text)
    assert not any(isinstance(module, (PackedLinear, QuickLayer)) for module in text.modules())
    assert any(isinstance(module, QuickNorm) for module in text.modules())
    assert float((hidden_of(text, 5, seed=3) - expected).abs().max()) < 2e-5 * float(expected.std())


@pytest.mark.parametrize("has_bias", [False, True])
def test_llamas_layers_are_known_too(has_bias: bool) -> None:
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=has_bias,
        mlp_bias=has_bias,
    )
    text = LlamaForCausalLM(config).requires_grad_(False).model.eval()
    for name, weight in text.named_parameters():
        if name.endswith("bias"):
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))))
    quick = copy.deepcopy(text)
    quicken(quick)
    assert can_pack() == isinstance(quick.layers[0], QuickLayer)
    expected, found = hidden_of(text, 7, seed=2), quick_hidden_of(quick, 7, seed=2)
    assert float((found - expected).abs().max()) < 2e-5 * float(expected.std())
    assert not any(type(module).__name__ == "LlamaRMSNorm" for module in quick.modules())


@pytest.mark.skipif(not can_pack(), reason="this torch has no oneDNN")
def test_positions_of_three_axes_turn_their_own_parts_of_a_head() -> None:
    """Time, height and width of an image differ; text has the same three times."""
    text = text_of("tiny-qwen2.5-vl")
    positions = torch.tensor([[0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]])[:, None]
    expected = hidden_of(text, 6, seed=3, position_ids=positions)
    plain = hidden_of(text, 6, seed=3)
    quicken(text)
    found = quick_hidden_of(text, 6, seed=3, position_ids=positions)
    assert float((found - expected).abs().max()) < 2e-5 * float(expected.std())
    assert float((plain - expected).abs().max()) > 1e-3 * float(expected.std())


@pytest.mark.skipif(not can_pack(), reason="this torch has no oneDNN")
def test_a_layer_with_a_linear_of_another_kind_is_not_taken_over() -> None:
    text = text_of("tiny-qwen3")

    class OtherLinear(nn.Linear):
        pass

    text.layers[1].mlp.down_proj.__class__ = OtherLinear
    quicken(text)
    assert [isinstance(layer, QuickLayer) for layer in text.layers] == [True, False, True, True]
