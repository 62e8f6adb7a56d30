"""Models, optimizers and launches whose update would not be the one asked for."""

import types

import numpy as np
import pytest
import torch
import transformers as T
from datasets import Dataset
from PIL import Image

from acpo import ACPOConfig, ACPOTrainer
from acpo.engines.trl import refusals
from acpo.errors import ACPOError
from engines.tiny import build, odd_tokens, options, recorded, tiny_model, tiny_tokenizer


def test_one_process_that_sees_several_gpus_is_refused_before_a_model_is_loaded(
    tmp_path, monkeypatch
):
    config = ACPOConfig(**options(tmp_path))
    monkeypatch.setattr(config, "_n_gpu", 2)
    with pytest.raises(ACPOError, match="one process sees 2 GPUs, and the model would be split"):
        ACPOTrainer("no/such-model", odd_tokens, config, Dataset.from_dict({"prompt": ["w1"] * 8}))


def test_a_model_in_parts_on_several_devices_is_refused(tmp_path):
    model = tiny_model()
    model.hf_device_map = {"": "cpu"}
    build(tmp_path, model)
    model.hf_device_map = {"model": 0, "lm_head": 1}
    with pytest.raises(ACPOError, match="device_map put parts of the model on 0, 1; the update"):
        build(tmp_path, model)


def test_nested_accumulation_is_refused(tmp_path):
    nested = {"gradient_accumulation_kwargs": {"num_steps": 4}}
    with pytest.raises(ACPOError, match="set gradient_accumulation_steps=4 instead"):
        recorded(tmp_path, accelerator_config=nested, steps_per_generation=4)


def test_optimizers_that_step_inside_backward_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ACPOError, match=r"optim=.*layerwise.*during backward"):
        ACPOConfig(**options(tmp_path, optim="galore_adamw_layerwise"))

    class LayerWiseDummyOptimizer(torch.optim.SGD):
        """Chosen behind the options' back, as a callable or a plugin may."""

    monkeypatch.setattr(
        T.Trainer,
        "create_optimizer",
        lambda self, *_: LayerWiseDummyOptimizer(self.model.parameters(), lr=1.0),
    )
    with pytest.raises(ACPOError, match="LayerWiseDummyOptimizer updates weights during backward"):
        recorded(tmp_path)


def launched(trainer, **changes):
    """A trainer as a launcher would have made it."""
    state = types.SimpleNamespace(
        deepspeed_plugin=changes.get("deepspeed"),
        dynamo_plugin=types.SimpleNamespace(backend=changes.get("dynamo", "NO")),
        megatron_lm_plugin=changes.get("megatron"),
        fsdp_plugin=changes.get("fsdp", types.SimpleNamespace(fsdp_version=2)),
    )
    precision = changes.get("precision", "no")
    return types.SimpleNamespace(
        processing_class=trainer.processing_class,
        model=trainer.model,
        args=trainer.args,
        accelerator=types.SimpleNamespace(
            state=state,
            mixed_precision=precision,
            split_batches=changes.get("split", False),
            dispatch_batches=changes.get("dispatch"),
            even_batches=changes.get("even", True),
        ),
        is_deepspeed_enabled=False,
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"deepspeed": object()}, "DeepSpeed was chosen by the launcher"),
        ({"precision": "fp16"}, "mixed_precision=fp16 was chosen by the launcher; use bf16"),
        ({"dynamo": "DynamoBackend.INDUCTOR"}, "dynamo_backend=.* was chosen by the launcher"),
        ({"fsdp": types.SimpleNamespace(fsdp_version=1)}, "set fsdp_version: 2"),
        ({"megatron": object()}, "Megatron was chosen by the launcher"),
        ({"split": True}, r"accelerator_config=\{'split_batches': True\} would .* other rows"),
        ({"dispatch": True}, r"accelerator_config=\{'dispatch_batches': True\}"),
        ({"even": False}, r"accelerator_config=\{'even_batches': False\}"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_a_launcher_chose_is_refused(tmp_path, change, words):
    trainer, _ = recorded(tmp_path, max_steps=1)
    refusals.refuse_built(launched(trainer))
    with pytest.raises(ACPOError, match=words):
        refusals.refuse_built(launched(trainer, **change))


def test_weights_that_trl_would_round_are_refused(tmp_path):
    wrong = {"use_transformers_continuous_batching": True, "bf16": True}
    with pytest.raises(ACPOError, match="round the float32 weights that are trained"):
        recorded(tmp_path, max_steps=1, **wrong)


def test_a_sharded_reference_that_moves_is_not_resumed(tmp_path):
    trainer, _ = recorded(tmp_path, max_steps=1)
    trainer.is_fsdp_enabled, trainer.args.save_strategy = True, "steps"
    trainer.args.sync_ref_model = True
    with pytest.raises(ACPOError, match="sync_ref_model=True under FSDP"):
        refusals.refuse_built(trainer)


def vision_model(folder):
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    image = tokenizer.convert_tokens_to_ids("<image>")
    torch.manual_seed(0)
    eyes = {"image_size": 16, "patch_size": 8, "projection_dim": 16, "hidden_size": 16}
    vision = T.CLIPVisionConfig(
        **eyes, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    text = T.Qwen2Config(
        vocab_size=80,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    config = T.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=image,
        image_seq_length=4,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )
    size = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    processor = T.LlavaProcessor(
        image_processor=T.CLIPImageProcessor(**size),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
        chat_template="{% for m in messages %}{{ m['content'] }} {% endfor %}w1 ",
    )
    T.LlavaForConditionalGeneration(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def test_a_vision_model_by_path_is_refused(tmp_path):
    path = vision_model(tmp_path / "model")
    config = ACPOConfig(**options(tmp_path))
    texts = Dataset.from_dict({"prompt": [[{"role": "user", "content": "w1 w2"}]] * 8})
    with pytest.raises(ACPOError, match="llava comes with an image processor"):
        ACPOTrainer(path, odd_tokens, config, texts)
    picture = Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8))
    pictured = Dataset.from_list([{"prompt": "w1", "image": picture}] * 8)
    with pytest.raises(ACPOError, match="column 'image', and images are not supported"):
        ACPOTrainer(path, odd_tokens, config, pictured)
