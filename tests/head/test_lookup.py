"""Finding a model's head."""

import pytest
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from acpo.errors import ACPOError
from acpo.head import language_model_head


def tiny(tied: bool = False) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=31,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            tie_word_embeddings=tied,
        )
    )


def test_tied_and_untied_heads():
    for tied in (False, True):
        model = tiny(tied)
        assert language_model_head(model).weight is model.lm_head.weight
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_an_adapter_on_the_head_is_refused_not_left_out():
    adapted = get_peft_model(tiny(), LoraConfig(target_modules=["lm_head", "q_proj"]))
    with pytest.raises(ACPOError, match="carries an adapter"):
        language_model_head(adapted)


def test_a_head_trained_beside_an_adapter_is_found():
    config = LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
    adapted = get_peft_model(tiny(), config)
    head = language_model_head(adapted)
    trained = [p for name, p in adapted.named_parameters() if "lm_head.modules_to_save" in name]
    assert head.weight is trained[0] and head.weight.requires_grad
