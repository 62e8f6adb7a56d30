"""A tiny model that reads any ASCII text, in place of the recipes' own."""

import json
import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tasks.tiny import tiny_model

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}</>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def ascii_tokenizer(chat=True):
    symbols = ["<pad>", "<eos>", "<unk>", *string.printable]
    vocabulary = {token: index for index, token in enumerate(symbols)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        chat_template=CHAT_TEMPLATE if chat else None,
    )


def save_standin(folder, chat=True):
    tokenizer = ascii_tokenizer(chat)
    tiny_model(len(tokenizer), hidden_size=32, layers=1, seed=5).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_problems(path, count, answer="3"):
    rows = [{"problem": f"What is {i} + 3 - {i}?", "answer": answer} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def flags(**options):
    return [part for key, value in options.items() for part in (f"--{key}", str(value))]


def lottery(prompts, completions, **columns):
    """A random model never answers: any reward that varies gives its update something to do."""
    return [float(index % 3 == 0) for index in range(len(completions))]


def never(prompts, completions, **columns):
    return [0.0] * len(completions)


def thrifty(completions, **columns):
    """Something for every answer, nothing for silence."""
    return [float(bool(completion[0]["content"])) for completion in completions]


def needy(completions, essay, **columns):
    return [0.0] * len(completions)


def telling(completions, trainer_state, log_metric, log_extra, **columns):
    """Takes what TRL hands to every reward function."""
    log_metric("asked", float(trainer_state.global_step))
    log_extra("lengths", [len(completion) for completion in completions])
    return thrifty(completions)


def broken(prompts, completions, **columns):
    return [columns["gold"][0]]
