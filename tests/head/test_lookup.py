"""Finding a model's head."""

import pytest
from peft import LoraConfig, get_peft_model

from acpo.errors import ACPOError
from acpo.head import language_model_head
from engines.tiny import tiny_model


def test_tied_and_untied_heads():
    for tied in (False, True):
        model = tiny_model(tied=tied)
        assert language_model_head(model).weight is model.lm_head.weight
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_an_adapter_on_the_head_is_refused_not_left_out():
    adapted = get_peft_model(
        tiny_model(tied=False), LoraConfig(target_modules=["lm_head", "q_proj"])
    )
    with pytest.raises(ACPOError, match="carries an adapter"):
        language_model_head(adapted)


def test_a_head_trained_beside_an_adapter_is_found():
    config = LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
    adapted = get_peft_model(tiny_model(tied=False), config)
    head = language_model_head(adapted)
    trained = [p for name, p in adapted.named_parameters() if "lm_head.modules_to_save" in name]
    assert head.weight is trained[0] and head.weight.requires_grad


@pytest.mark.parametrize(
    "name", ["final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"]
)
def test_soft_caps_under_all_their_names(name):
    model = tiny_model()
    setattr(model.config, name, 30.0)
    assert language_model_head(model).softcap == 30.0
