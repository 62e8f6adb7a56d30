"""Every bad value ends in one line and status 2, from `acpo train` and `acpo doctor` alike."""

import asyncio
import importlib.util
import json
from pathlib import Path

import pytest
import torch
import trl
import yaml
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig
from typer.testing import CliRunner

from acpo.cli import app
from acpo.engines.trl.rewards import checked_reward
from acpo.errors import ACPOError
from acpo.train import launch
from train.standin import save_standin, write_problems


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    save_standin(folder / "model")
    write_problems(folder / "problems.jsonl", 40)
    return folder


def run(place, command, extra=(), **changes):
    values = {"model_name_or_path": str(place / "model"), "data": str(place / "problems.jsonl")}
    values |= {"use_cpu": True, "bf16": False, "output_dir": str(place / "run"), "max_steps": 1}
    values |= {"max_completion_length": 16, "num_generations": 4, "report_to": "none"}
    values |= {"per_device_train_batch_size": 8, "save_strategy": "no", **changes}
    recipe = place / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(values))
    result = CliRunner().invoke(app, [command, str(recipe), *extra])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr.strip().splitlines()


@pytest.mark.parametrize("command", ["train", "doctor"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"temperature": 0}, "temperature=0 must be 0.001 or more"),
        ({"try_next": 5}, "try_next=5 must be a list, as in [5]"),
        ({"try_next": ["acpo methods", 5]}, "must be texts; put each in quotes"),
        ({"method_options": [1]}, "method_options=[1] must be a mapping"),
        ({"lora_target_modules": [1]}, "must be texts"),
        ({"env": {"A": {"b": 1}}}, "env: A={'b': 1} must be a text or a number"),
        ({"env": {"A": None}}, "env: A=None must be a text or a number"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0 must be 0 or more"),
        ({"learning_rate": "-1e-6"}, "learning_rate=-1e-06 must be 0 or more"),  # as YAML reads it
        ({"learning_rate": float("nan")}, "learning_rate=nan must be"),
        ({"learning_rate": None}, "learning_rate is empty"),
        ({"learning_rate": [1]}, "learning_rate=[1] must be a number"),
        ({"max_steps": 2.5}, "max_steps=2.5 must be a whole number"),
        ({"max_steps": True}, "max_steps=True must be a whole number"),
        ({"max_steps": 0}, "max_steps=0 must be above 0, or left out"),
        ({"num_generations": None}, "num_generations is empty"),
        ({"num_generations": 4.0}, "num_generations=4.0 must be a whole number"),
        ({"held_out": 10.5}, "held_out=10.5 must be a whole number"),
        ({"sampler_rows": 2.5}, "sampler_rows=2.5 must be a whole number"),
        ({"tau_pos": [1.0]}, "tau_pos=[1.0] must be a number"),
        ({"output_dir": ""}, "output_dir is empty"),
        ({"output_dir": None}, "output_dir is empty"),
        ({"task": 1}, "task=1 must be a text; put it in quotes"),
        ({"template": 5}, "template=5 must be a text"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0 must be above 0"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size=0 must be above 0"),
        ({"top_p": 1.5}, "top_p=1.5 is not honoured"),
        ({"seed": 2**32}, "seed=4294967296 must be in [0, 2**32)"),
        ({"seed": -1}, "seed=-1 must be in [0, 2**32)"),
        ({"dataloader_num_workers": -1}, "dataloader_num_workers=-1 must be 0 or more"),
        ({"adam_beta1": 2.0}, "adam_beta1=2.0 must be in [0, 1)"),
        ({"adam_beta2": 1}, "adam_beta2=1 must be in [0, 1)"),
        ({"adam_epsilon": -1.0}, "adam_epsilon=-1.0 must be 0 or more"),
        ({"entropy_coef": float("nan")}, "entropy_coef=nan must be finite"),
        ({"entropy_coef": "inf"}, "entropy_coef=inf must be finite"),
        ({"optim": "adamw_bnb_8bit"}, "optim=adamw_bnb_8bit, optim_args=None: ImportError:"),
        ({"fsdp": True}, "fsdp=True shards over several processes, and here is one"),
        ({"gradient_checkpointing_kwargs": {"nope": 1}}, "nope is no option of torch.utils"),
        ({"optim": "galore_adamw"}, "optim=galore_adamw, optim_args=None: ImportError: You need"),
        ({"optim_args": "nope"}, "optim_args=nope: ValueError"),
        (
            {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"nope": 1}},
            "lr_scheduler_kwargs={'nope': 1}: TypeError: get_cosine_schedule_with_warmup() got",
        ),
        (
            {"lr_scheduler_type": "constant", "warmup_steps": 5},
            "warmup_steps=5 has no effect with lr_scheduler_type=constant; use",
        ),
        ({"top_p": 0.9}, "top_p=0.9 is not honoured: drawing from part of the vocabulary"),
        ({"dtype": "float33"}, "dtype='float33' is unknown; use one of auto, bfloat16"),
        ({"log_level": "verbose"}, "log_level='verbose' is unknown; use one of "),
        (
            {"attn_implementation": "sdpb"},
            "attn_implementation='sdpb' is unknown; use eager or flash_attention_",
        ),
        (
            {"cache_implementation": "statik"},
            "recipe.yaml: Invalid `cache_implementation` (statik)",
        ),
        ({"report_to": "wandb"}, "requires wandb to be installed. Run `pip install wandb`"),
        ({"report_to": "dvclive"}, "report_to=['dvclive']: RuntimeError: DVCLiveCallback requires"),
        ({"report_to": "codecarbon"}, "RuntimeError: CodeCarbonCallback requires `codecarbon`"),
        ({"report_to": "wandv"}, "report_to=['wandv']: ValueError: wandv is not supported, only"),
        ({"max_completion_length": 2}, "max_completion_length=2 cannot hold an answer"),
        (
            {"max_completion_length": 950},
            "leaves room for 74 in the model's context; set max_prompt_tokens: 74",
        ),
        ({"data": "none.jsonl"}, "is not a file"),
        ({"temprature": 1}, "did you mean temperature?"),
        ({"max_tokens_per_pack": 10}, "max_tokens_per_pack=10 cannot hold a sequence"),
        (
            {"held_out": 4, "per_device_eval_batch_size": 6, "num_generations_eval": 4},
            "per_device_eval_batch_size=6 on 1 process(es) is not a multiple",
        ),
        ({"deepspeed": "none.json"}, "deepspeed='none.json' is not honoured: DeepSpeed steps"),
        ({"max_resample_times": 2}, "max_resample_times=2 does nothing without dynamic_sampling"),
        ({"soft_overlong_penalty": 0.5}, "=0.5 does nothing without soft_overlong_cache"),
        ({"record_every": 2}, "record_every=2 does nothing without record_rollouts"),
        ({"sync_ref_model": True, "beta": 0.0}, "sync_ref_model=True does nothing without beta"),
        ({"ref_model_sync_steps": 5}, "ref_model_sync_steps=5 does nothing without sync_ref_model"),
        ({"dataloader_persistent_workers": True}, "=True does nothing without dataloader_num_work"),
        ({"sampler_rows": 4}, "sampler_rows=4 is for sampler='static'"),
        (
            {"sampler": "static", "cast_lm_head_to_fp32": True},
            "cast_lm_head_to_fp32=True is not honoured by sampler='static'",
        ),
        (
            {"sampler": "static", "model_init_kwargs": {"layer_types": ["sliding_attention"] * 2}},
            "has layers of type sliding_attention; use sampler='generate'",
        ),
        ({"chain_steps": 3}, "chain_steps=3 is for task='chain'"),
        ({"data_config": "main"}, "data_config='main' is for a data set on the hub"),
        ({"data_split": "test"}, "data_split='test' is for a data set on the hub"),
        ({"held_out_split": "test", "held_out": 4}, "held_out_split='test' is for a data set on"),
        ({"save_strategy": "best"}, "save_strategy=best needs evaluations to choose by"),
        (
            {"save_strategy": "best", "metric_for_best_model": "eval_reward"},
            "set held_out, eval_strategy and metric_for_best_model",
        ),
        (
            {
                **{"load_best_model_at_end": True, "metric_for_best_model": "reward"},
                **{"save_strategy": "steps", "eval_strategy": "steps"},
            },
            "load_best_model_at_end=True needs evaluations to choose by",
        ),
        (
            {
                **{"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"},
                "metric_for_best_model": "reward",
            },
            "lr_scheduler_type=reduce_lr_on_plateau needs evaluations to choose by",
        ),
        (
            {"reward_funcs": ["train.standin.lottery", "train.standin.needy"]},
            "'needy' needs 'essay', which is not a column",
        ),
        ({"reward_funcs": []}, "recipe.yaml: reward_funcs is empty; give a value, or leave it out"),
        ({"reward_weights": [1.0, 2.0]}, "reward_weights=[1.0, 2.0] has 2 number(s) for 1 reward"),
        ({"load_in_4bit": True}, "load_in_4bit: bitsandbytes is not installed"),
        *(
            (
                {"attn_implementation": kind},
                f"no causal LM can be built of its config.json with attn_implementation={kind}: "
                "ImportError",
            )
            for kind in ("flash_attention_2", "flash_attention_3")
        ),
        (
            {"model_init_kwargs": {"attn_implementation": "sdpb"}},
            "attn_implementation='sdpb' is unknown; use eager or flash_attention_",
        ),
        ({"model_init_kwargs": {"dtype": "float33"}}, "dtype='float33' is no type of torch"),
        (
            {"use_peft": True, "lora_target_modules": ["nope", "nada"]},
            "which has down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj",
        ),
        (
            {"use_peft": True, "lora_target_modules": ["q_proj", "v_porj"]},
            "lora_target_modules=['q_proj', 'v_porj']: 'v_porj' is no part of",
        ),
        ({"use_peft": True, "lora_modules_to_save": ["nope"]}, "=['nope']: 'nope' is no part of"),
        ({"use_peft": True, "lora_dropout": 2.0}, "lora_dropout=2.0 must be in [0, 1)"),
        ({"use_peft": True, "lora_task_type": "SEQ_CLS"}, "lora_task_type='SEQ_CLS' is not of a"),
        ({"lora_r": 4}, "lora_r does nothing without use_peft; set that, or leave lora_r out"),
        ({"bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type does nothing without load_in_4bit"),
        (
            {"use_peft": True, "lora_target_modules": ["lm_head", "q_proj"]},
            "carries an adapter (Linear), which the fused head would leave out",
        ),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_one_line_and_status_2(place, command, changes, said):
    status, lines = run(place, command, **changes)
    errors = [line for line in lines if line.startswith("error: ")]
    assert status == 2 and len(errors) == 1 and said in errors[0]


def test_a_row_named_by_a_number(place):
    """YAML reads 8020 without quotes as a number."""
    status, lines = run(place, "doctor", method=8020)
    assert status == 0, lines


def test_an_adapter_on_one_kind_of_layer(place):
    status, lines = run(place, "doctor", use_peft=True, lora_target_modules=["q_proj"])
    assert status == 0, lines


def test_doctor_calls_a_reward_function_as_trl_does(place):
    status, lines = run(place, "doctor", reward_funcs=["train.standin.telling"])
    assert status == 0, lines


def test_doctor_reads_a_model_with_code_of_its_own_where_that_is_trusted(place, tmp_path):
    folder = Path(save_standin(tmp_path / "mine"))
    config = json.loads((folder / "config.json").read_text())
    (kind,) = config["architectures"]
    base = kind.removesuffix("ForCausalLM")
    (folder / "mine.py").write_text(
        f"from transformers import {base}Config, {kind}\n\n\n"
        f"class MineConfig({base}Config):\n    model_type = 'mine'\n\n\n"
        f"class Mine({kind}):\n    config_class = MineConfig\n"
    )
    auto = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.Mine"}
    config |= {"model_type": "mine", "auto_map": auto}
    (folder / "config.json").write_text(json.dumps(config))
    trusted = {"model_name_or_path": str(folder), "trust_remote_code": True}
    status, lines = run(place, "doctor", **trusted)
    assert status == 0, lines


def test_a_rollout_smaller_than_an_update_is_told(place):
    batches = {"per_device_train_batch_size": 8, "generation_batch_size": 8}
    status, lines = run(place, "doctor", ["--processes", "2"], **batches)
    assert status == 2 and "divisible by the global batch size (16)" in lines[-1]


def test_groups_that_only_several_processes_hold(place):
    batches = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2}
    evaluated = {"held_out": 4, "eval_strategy": "steps"}
    for processes in (1, 2):
        count = ["--processes", str(processes)]
        status, lines = run(place, "doctor", count, **batches, **evaluated)
        assert status == (0 if processes == 2 else 2), lines


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_on_the_command_line_too(place, command):
    status, lines = run(place, command, ["--gradient_accumulation_steps", "0"])
    assert status == 2 and "gradient_accumulation_steps=0 must be above 0" in lines[-1]


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_a_pad_token_outside_the_vocabulary(place, tmp_path, command):
    save_standin(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"pad_token": "<newpad>"})
    tokenizer.save_pretrained(tmp_path)
    status, lines = run(place, command, model_name_or_path=str(tmp_path))
    assert status == 2 and "pad_token '<newpad>' is number 103, outside" in lines[-1]


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_a_tokenizer_without_tokens_for_the_prompts(place, command):
    model = "package:acpo/tasks/checkpoints/chain"
    status, lines = run(place, command, model_name_or_path=model, max_completion_length=40)
    assert status == 2 and "cannot read the prompts: its tokenizer makes '<pad><pad>" in lines[-1]
    assert "of 'What is 0 + 3 - 0?" in lines[-1]


@pytest.mark.parametrize("command", ["train", "doctor"])
@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("model.safetensors", "has no weights (*.safetensors or *.bin); save the model there"),
        ("config.json", "its config.json cannot be read: ValueError: Unrecognized model"),
        ("tokenizer*", "prompt 0 has no tokens: the tokenizer of"),
    ],
)
def test_a_model_folder_that_lacks_a_file(place, tmp_path, command, gone, said):
    save_standin(tmp_path)
    for file in [*tmp_path.glob(gone), *tmp_path.glob("chat_template*")]:
        file.unlink()
    status, lines = run(place, command, model_name_or_path=str(tmp_path))
    assert status == 2 and said in lines[-1] and str(tmp_path) in lines[-1]


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_a_model_that_cannot_be_trained(place, tmp_path, command):
    save_standin(tmp_path)
    small = {"vocab_size": 103, "num_hidden_layers": 1, "num_experts": 2}
    Qwen3MoeConfig(**small, router_aux_loss_coef=0.01).save_pretrained(tmp_path)
    status, lines = run(place, command, model_name_or_path=str(tmp_path))
    assert status == 2 and "router_aux_loss_coef=0.01: the load-balancing loss" in lines[-1]


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_weights_that_were_cut_short(place, tmp_path, command):
    save_standin(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    status, lines = run(place, command, model_name_or_path=str(tmp_path))
    assert status == 2 and "model.safetensors cannot be read" in lines[-1]
    assert "cut short" in lines[-1]


def test_room_is_that_of_the_model_as_it_will_be_made(place):
    positions = json.loads((place / "model" / "config.json").read_text())["max_position_embeddings"]
    long = {"max_completion_length": positions}
    status, lines = run(place, "doctor", **long)
    assert status == 2 and "lower max_completion_length" in lines[-1]
    longer = {"max_position_embeddings": 2 * positions}
    assert run(place, "doctor", **long, model_init_kwargs=longer)[0] == 0


@pytest.mark.parametrize("command", ["train", "doctor"])
@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}, "model-2.saf"),
        ({"weight_map": [1]}, "cannot be read"),
    ],
)
def test_a_shard_that_is_not_there(place, tmp_path, command, index, said):
    save_standin(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    status, lines = run(place, command, model_name_or_path=str(tmp_path))
    assert status == 2 and said in lines[-1] and "copy the model again" in lines[-1]


def test_the_base_of_an_adapter_is_loaded_as_asked(place, tmp_path, monkeypatch):
    """In four bits, where that is asked for; there is no bitsandbytes here to do it."""
    below = AutoModelForCausalLM.from_pretrained(place / "model")
    get_peft_model(below, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(place / "model").save_pretrained(tmp_path)
    asked = []

    def load(name, **options):
        asked.append(options)
        raise ACPOError("enough")

    monkeypatch.setattr(launch, "load_model", load)
    monkeypatch.setattr(trl, "get_quantization_config", lambda model: "four bits")
    status, lines = run(place, "train", model_name_or_path=str(tmp_path))
    assert status == 2 and "enough" in lines[-1]
    assert asked[0]["quantization_config"] == "four bits" and asked[0]["trainable"]


def test_what_the_libraries_refuse_is_one_line(place):
    status, lines = run(place, "train", model_init_kwargs={"nosuch": 1})
    assert status == 2 and "no trainer could be built: TypeError" in lines[-1]
    assert "recipe.yaml" in lines[-1] and "argument 'nosuch'" in lines[-1]


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_weights_that_are_no_numbers(place, tmp_path, command):
    save_standin(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    status, lines = run(place, command, model_name_or_path=str(tmp_path))
    assert status == 2 and "not finite" in lines[-1] and "damaged" in lines[-1]


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_data_that_would_end_the_run(place, tmp_path, command):
    rows = [{"problem": f"{i} + 3 - {i}?", "answer": "3", "image": None} for i in range(40)]
    (tmp_path / "image.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, lines = run(place, command, data=str(tmp_path / "image.jsonl"))
    assert status == 2 and "has a column 'image'" in lines[-1]
    held = {"problem": "3" * 2000, "answer": "3"}
    (tmp_path / "held.jsonl").write_text(json.dumps(held) + "\n")
    changes = {"held_out": 1, "held_out_data": str(tmp_path / "held.jsonl")}
    status, lines = run(place, command, **changes, num_generations_eval=1)
    assert status == 2 and "the longest held-out prompt has 20" in lines[-1]


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_a_folder_with_checkpoints(place, tmp_path, command):
    (tmp_path / "checkpoint-3").mkdir()
    status, lines = run(place, command, output_dir=str(tmp_path))
    assert status == 2 and "holds checkpoints up to checkpoint-3" in "".join(lines)
    resumed = str(tmp_path / "checkpoint-3")
    status, lines = run(place, command, output_dir=str(tmp_path), resume_from_checkpoint=resumed)
    assert status == 2 and "acpo_manifest.json is missing" in lines[-1]


def test_a_folder_with_another_run(place, tmp_path):
    assert run(place, "train", output_dir=str(tmp_path))[0] == 0
    for command in ("train", "doctor"):
        status, lines = run(place, command, output_dir=str(tmp_path), method="grpo")
        assert status == 2 and "holds a trained model of another run" in "".join(lines)
        assert '  method: "acpo" there, "grpo" here' in lines
        status, lines = run(place, command, output_dir=str(tmp_path), max_steps=7)
        assert status == 2 and any(line.endswith(" there, 7 here") for line in lines)


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_evaluation_at_the_start_of_nothing(place, tmp_path, command):
    assert run(place, command, output_dir=str(tmp_path), eval_on_start=True)[0] == 0


def test_a_metric_that_no_evaluation_gives(place, tmp_path):
    chosen = {"save_strategy": "best", "metric_for_best_model": "eval_rewrad", "held_out": 4}
    chosen |= {"eval_strategy": "steps", "eval_steps": 1, "output_dir": str(tmp_path)}
    status, lines = run(place, "train", **chosen)
    assert status == 2 and "'eval_rewrad', which is not found in" in lines[-1]


def test_vllm_is_missed_where_training_would_be(place, monkeypatch):
    assert importlib.util.find_spec("vllm") is None
    for command in ("train", "doctor"):
        status, lines = run(place, command, use_vllm=True)
        assert status == 2 and "use_vllm: vllm is not installed" in lines[-1]
    status, _ = run(place, "doctor", use_vllm=True, use_cpu=False)
    assert status == 0, "without a GPU, another machine will train"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    status, lines = run(place, "doctor", use_vllm=True)
    assert status == 2 and "use_vllm: vllm is not installed" in lines[-1]


def test_a_reward_that_raises_names_its_line_once(place, tmp_path):
    file = tmp_path / "my_rewards.py"
    file.write_text("def gold(prompts, completions, **columns):\n    return columns['gold']\n")
    status, lines = run(place, "train", reward_funcs=[f"{file}:gold"])
    assert status == 2 and "'gold' raised KeyError" in lines[-1]
    assert lines[-1].count("my_rewards.py:2") == lines[-1].count("raised") == 1


def test_dry_run_keeps_the_variables_of_a_recipe(place):
    recipe = place / "variables.yaml"
    model = {"model_name_or_path": str(place / "model"), "use_cpu": True, "bf16": False}
    recipe.write_text(yaml.safe_dump({"env": {"ACPO_TEST_VARIABLE": 1}, **model}))
    said = CliRunner().invoke(app, ["train", str(recipe), "--dry-run"]).stdout
    assert yaml.safe_load(said)["env"] == {"ACPO_TEST_VARIABLE": 1}


def test_dry_run_prints_a_recipe_that_says_the_same(tmp_path):
    quickstart = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
    arguments = ["train", str(quickstart), "--dry-run", "--learning_rate", "1e-5"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    values = yaml.safe_load(result.output)
    assert values["learning_rate"] == 1e-5 and values["output_dir"] == "runs/quickstart"
    assert "# generation_batch_size: 512" in result.output
    assert "# acpo: tau_neg: 1.05" in result.output
    (tmp_path / "again.yaml").write_text(result.output)
    again = CliRunner().invoke(app, ["train", str(tmp_path / "again.yaml"), "--dry-run"])
    assert again.output == result.output


def test_help_lists_options_by_group():
    result = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "80"})
    found = [result.output.index(title) for title in ("Data and report", "Model", "Method and")]
    assert found == sorted(found)
    for option in ("--task", "--method", "--learning_rate", "--num_generations", "--lora_r"):
        assert f"{option} " in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_version_and_methods():
    from importlib.metadata import version

    assert CliRunner().invoke(app, ["--version"]).output == f"acpo {version('acpo')}\n"
    shown = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "80"}).output
    assert max(map(len, shown.splitlines())) <= 80 and "global_sg_x3" in shown


def test_async_rewards_name_their_line_too():
    async def broken(prompts, completions, **columns):
        return columns["gold"]

    checked = checked_reward(broken)
    with pytest.raises(ACPOError, match=r"KeyError: 'gold', at .*test_bad_values.py:\d+; return"):
        asyncio.run(checked(prompts=["?"], completions=["x"]))
    assert checked.__name__ == "broken"
