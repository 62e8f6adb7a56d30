"""Model names to models: packaged checkpoints, GGUF files, folders, hub ids, and adapters."""

import hashlib
import importlib.util
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acpo.errors import ACPOError, ACPOWarning, reason
from acpo.jsonl import json_value

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PACKAGED = "package:"
"""Prefix of a file or folder inside an installed Python package: `package:NAME/PATH`."""


LOST, LOOKED_AT = 0.1, 200
"""From which share of lost tokens a model cannot read its prompts; of how many prompts."""

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


class NoModelError(ACPOError):
    """A name behind which there is no model."""


@contextmanager
def loading(place: str) -> Iterator[None]:
    """Whatever the files of a model make those raise who read them, as one line with a remedy."""
    try:
        yield
    except ACPOError:
        raise
    except Exception as error:  # a damaged file raises whatever its parser raises
        said = f"model {place!r} cannot be loaded ({reason(error)})"
        if isinstance(error, OSError) and not Path(place).exists():
            raise NoModelError(
                f"{said}: no such folder is here; check the path, or give a hub id"
            ) from error
        raise ACPOError(
            f"{said}: it is damaged or cut short, or lacks a file: copy all of it again"
        ) from error


def resolve_model(name: str, output_dir: str | Path) -> str:
    """The folder or hub id behind a model name.

    A GGUF file is unpacked once to `<output_dir>/base-model`, since reference models, vLLM and
    `save_pretrained` need an ordinary checkpoint. `package:NAME/PATH` is inside that package.
    """
    if name.startswith(PACKAGED):
        name = str(_packaged(name))
    if not name.endswith(".gguf"):
        if Path(name).is_file():
            raise ACPOError(f"model {name!r} is a file, not a folder: name the folder it is in")
        if not Path(name).is_dir() and not _HUB_ID.fullmatch(name):
            raise NoModelError(
                f"model {name!r} is no folder here: check the path, or give a hub id"
            )
        return name
    file, folder = Path(name), Path(output_dir) / "base-model"
    if not file.is_file():
        raise ACPOError(f"model_name_or_path={name!r} is not a file")
    from accelerate import PartialState

    with PartialState().local_main_process_first():
        source = folder / "gguf.txt"
        if not folder.is_dir():
            partial = folder.with_name("base-model.partial")
            unpack_gguf(file, partial)
            (partial / source.name).write_text(_version(file), encoding="utf-8")
            partial.rename(folder)
        elif source.is_file() and source.read_text(encoding="utf-8") != _version(file):
            raise ACPOError(
                f"{folder} was unpacked from another file than {name!r} is now: remove it, or give "
                "another output_dir"
            )
    return str(folder)


def _version(file: Path) -> str:
    """What tells a file from others, and from what stood there before."""
    found = file.stat()
    return f"{file.absolute()}\n{found.st_size}\n{found.st_mtime_ns}\n"


def unpacked_to(name: str) -> Path:
    """Where a GGUF file is unpacked when no run has a folder for it: once per user and file."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "acpo" / "gguf"
    file = Path(name)
    mark = _version(file) if file.is_file() else name
    return home / hashlib.sha256(mark.encode()).hexdigest()[:16]


def _packaged(name: str) -> Path:
    package, _, inside = name.removeprefix(PACKAGED).partition("/")
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # what a dotted name is in, or a name that is none
        found = None
    if found is None or not found.submodule_search_locations:
        project = package.replace("_", "-")
        raise ACPOError(
            f"model {name!r}: package {package!r} is not installed; "
            f"`pip install {project}` may provide it"
        )
    path = Path(next(iter(found.submodule_search_locations))) / inside
    if not path.exists():
        raise ACPOError(f"model {name!r}: {package!r} has no {inside!r}")
    return path


def adapter_base(name: str) -> str | None:
    """The model a PEFT adapter was trained on; None for a folder or id that is no adapter."""
    file = Path(name) / "adapter_config.json"
    if not file.is_file():
        return None
    try:
        base = json_value(file.read_text(encoding="utf-8"))["base_model_name_or_path"]
        if not isinstance(base, str) or not base:
            raise ValueError(f"base_model_name_or_path={base!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = f"its adapter_config.json does not name the base model ({reason(error)})"
        raise ACPOError(f"model {name!r}: {said}") from error
    return resolve_model(base, name)


def load_model(name: str, *, trainable: bool = False, **options: Any) -> Any:
    """The weights of a resolved model, with options of `from_pretrained`.

    An adapter is merged into its base, unless it is to be `trainable`.
    """
    from transformers import AutoModelForCausalLM

    base = adapter_base(name)
    if base is None:
        return AutoModelForCausalLM.from_pretrained(name, **options)
    if importlib.util.find_spec("peft") is None:
        raise ACPOError(f"model {name!r} is an adapter: `pip install peft` to load it")
    from peft import PeftModel

    below = AutoModelForCausalLM.from_pretrained(base, **options)
    model: Any = PeftModel.from_pretrained(below, name, is_trainable=trainable)
    return model if trainable else model.merge_and_unload(safe_merge=True)


def unpack_gguf(file: Path, folder: Path) -> None:
    """Write a GGUF file as an ordinary float32 checkpoint with its tokenizer."""
    if importlib.util.find_spec("gguf") is None:
        raise ACPOError(f"model_name_or_path={str(file)!r} needs `pip install gguf` to be read")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with loading(str(file)):
        model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # The loaded model remembers its quantised origin and refuses to be saved; a fresh one does not.
    plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tokenizer_place(name: str) -> str:
    """Where a model's tokenizer is: with it, or with the base of an adapter that has none."""
    base = adapter_base(name)
    return base if base and not (Path(name) / "tokenizer_config.json").is_file() else name


def read_tokenizer(name: str, **options: Any) -> "PreTrainedTokenizerBase":
    """The tokenizer of a resolved model, as it is."""
    from transformers import AutoTokenizer

    place = tokenizer_place(name)
    with loading(place):
        return AutoTokenizer.from_pretrained(place, **options)


def load_tokenizer(name: str, **options: Any) -> "PreTrainedTokenizerBase":
    """The tokenizer of a resolved model, padding on the left, fit to train with."""
    tokenizer = read_tokenizer(name, padding_side="left", **options)
    if tokenizer.eos_token is None:
        raise ACPOError(
            f"model_name_or_path={name!r}: its tokenizer has no end-of-sequence token, so no "
            "completion could end; set tokenizer.eos_token and save it"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def require_tokens(counts: Sequence[int], what: str, name: str) -> None:
    """Raise where a prompt has none: without its files a tokenizer may be there, and be empty."""
    if 0 in counts:
        raise ACPOError(
            f"{what} {counts.index(0)} has no tokens: the tokenizer of {name!r} gives none for its "
            "text; are its files (tokenizer.json) there?"
        )


def unread(texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase") -> tuple[float, str]:
    """The share of tokens in place of text that the tokenizer has none for, and the worst text.

    Its padding and its unknown token tell, where the text does not name them; what it decodes does
    not, as many a tokenizer changes spaces, letters or accents on purpose.
    """
    every: Any = tokenizer(list(texts), add_special_tokens=False)["input_ids"]  # they may pad too
    blanks = {
        tokenizer.pad_token_id: tokenizer.pad_token,
        tokenizer.unk_token_id: tokenizer.unk_token,
    }
    lost = [
        sum(ids.count(number) for number, token in blanks.items() if str(token) not in text)
        for text, ids in zip(texts, every, strict=True)
    ]
    worst = lost.index(max(lost))
    said = f"{tokenizer.decode(every[worst])[:160]!r} of {texts[worst][:80]!r}"
    return sum(lost) / max(sum(map(len, every)), 1), said


def warn_unread(texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase", name: str) -> None:
    """Warn where a model is asked what it cannot read."""
    share, said = unread(texts[:LOOKED_AT], tokenizer) if texts else (0.0, "")
    if share > LOST:
        told = f"model {name!r} cannot read the prompts: its tokenizer makes {said}"
        warnings.warn(told, ACPOWarning, stacklevel=3)


def check_weights(name: str) -> None:
    """Raise for a folder without weights, or with a file of them that is cut short."""
    from safetensors import SafetensorError, safe_open

    for folder in map(Path, filter(None, (name, adapter_base(name)))):
        if not folder.is_dir():  # a hub id
            continue
        files = sorted(folder.glob("*.safetensors"))
        if not files and not any(folder.glob("*.bin")):
            raise ACPOError(
                f"model {str(folder)!r} has no weights (*.safetensors or *.bin); save the model "
                "there, or name another folder"
            )
        for index in folder.glob("*.index.json"):
            if missing := sorted(_indexed(index) - {path.name for path in folder.iterdir()}):
                raise ACPOError(
                    f"{index} names {missing[0]}, which is not there: copy the model again"
                )
        for file in files:
            try:
                with safe_open(file, framework="pt"):
                    pass
            except (SafetensorError, OSError) as error:
                raise ACPOError(
                    f"{file} cannot be read ({error}); it is damaged or cut short: copy it again"
                ) from error


def _indexed(index: Path) -> set[str]:
    """The files of weights that an index names."""
    try:
        return set(json_value(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ACPOError(
            f"{index} cannot be read ({reason(error)}): copy the model again"
        ) from error
