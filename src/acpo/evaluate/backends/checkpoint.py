"""What the backends that load a model themselves share: all of it but the weights."""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from transformers import AutoConfig

from acpo.checkpoints import (
    adapter_base,
    check_weights,
    loading,
    read_tokenizer,
    require_tokens,
    resolve_model,
    unpacked_to,
    warn_unread,
)
from acpo.evaluate.backends import Request, Sampling, SamplingError
from acpo.jsonl import json_value
from acpo.verify.extract import THINK_OPENERS

_READ_WHOLE_BYTES = 64 << 20
_SLICE_BYTES = 64 << 10
_SLICES_OF_A_TENSOR = 3
_SLICES_OF_A_FILE = 256
_WEIGHTS = ("*.safetensors", "*.bin")
_OTHERS = (
    *("config.json", "adapter_config.json", "generation_config.json"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt"),
    *("*.model", "*.tiktoken", "chat_template*", "additional_chat_templates/*"),
)
"""What else decides what a model is asked and where it ends."""


class Checkpoint:
    """A model's configuration and tokenizer, and its prompts as tokens.

    `name` is a hub id, folder (a PEFT adapter's, too), `.gguf` file, or `package:NAME/PATH`;
    `place` is the folder or hub id behind it, and `base` the model below an adapter, or `place`.

    Raises:
        ACPOError: There is no such model, or it is damaged.
        SamplingError: It has no chat template, and `sampling.chat` asks for it.
    """

    def __init__(self, name: str, sampling: Sampling) -> None:
        self.name = name
        self._sampling = sampling
        self._texts: dict[str, str] = {}  # of each prompt, what the chat template makes
        self.place = resolve_model(name, unpacked_to(name))
        self.base = adapter_base(self.place) or self.place
        # Said, not left out: left out, transformers asks the terminal whether to run its code.
        with loading(self.base):
            self.config = AutoConfig.from_pretrained(self.base, trust_remote_code=False)
        self.tokenizer: Any = read_tokenizer(self.place, trust_remote_code=False)
        check_weights(self.place)
        if sampling.chat and not self.tokenizer.chat_template:
            raise SamplingError(
                f"model {name!r} has no chat template: pass --prompt-format plain to send prompts "
                "as text"
            )
        self.dtype: torch.dtype = getattr(self.config, "dtype", None) or torch.float32

    def settings(self, backend: str, dtype: torch.dtype) -> dict[str, Any]:
        """What the completions of a backend that computes in `dtype` depend on."""
        known = {"backend": backend, "model": self.name, "revision": self.revision}
        return {**known, "dtype": str(dtype), **self._sampling._asdict()}

    @functools.cached_property
    def revision(self) -> str | None:
        """What tells these weights from others of the same name."""
        folders = [Path(place) for place in dict.fromkeys((self.place, self.base))]
        marks = [fingerprint(folder) for folder in folders if folder.is_dir()]
        on_hub = len(marks) < len(folders)  # itself, or the base of an adapter
        commit = getattr(self.config, "_commit_hash", None) if on_hub else None
        return "+".join(filter(None, [*marks, commit])) or None

    def prompts(self, requests: Iterable[Request]) -> dict[str, list[int]]:
        """The tokens of every prompt.

        Raises:
            ACPOError: One has no tokens, or the longest leaves no room for `max_tokens`.
        """
        texts = dict.fromkeys(request.prompt for request in requests)
        prompts = {text: self.tokens(text) for text in texts}
        self.require_room(prompts.values())
        shown = map(self._rendered, texts) if self._sampling.chat else texts
        warn_unread(list(shown), self.tokenizer, self.name)
        return prompts

    def require_room(self, prompts: Iterable[Sequence[int]]) -> None:
        """Refuse prompts of no tokens, and those whose completions may run past the positions."""
        counts = [len(prompt) for prompt in prompts]
        require_tokens(counts, "prompt", self.name)
        room = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        longest = max(counts, default=0)
        if room is not None and longest >= room:
            raise SamplingError(
                f"a prompt of {longest} tokens leaves no room for a completion in the {room} "
                f"positions of {self.name!r}: leave it out"
            )
        if room is not None and longest + self._sampling.max_tokens > room:
            raise SamplingError(
                f"--max-tokens {self._sampling.max_tokens} and a prompt of {longest} tokens exceed "
                f"the {room} positions of {self.name!r}: --max-tokens {room - longest} fits"
            )

    def tokens(self, prompt: str) -> list[int]:
        """What the model reads for a prompt."""
        if not self._sampling.chat:
            return list(self.tokenizer(prompt)["input_ids"])
        return list(self.tokenizer(self._rendered(prompt), add_special_tokens=False)["input_ids"])

    def thinking(self, prompt: str) -> str:
        """The tag by which a chat template begins the model's thoughts; nothing without one."""
        end = self._rendered(prompt).rstrip() if self._sampling.chat else ""
        return next((tag for tag in THINK_OPENERS if end.endswith(tag)), "")

    def _rendered(self, prompt: str) -> str:
        if prompt not in self._texts:
            self._texts[prompt] = self._render(prompt)
        return self._texts[prompt]

    def _render(self, prompt: str) -> str:
        system = self._sampling.system
        try:
            text = str(
                self.tokenizer.apply_chat_template(
                    self._sampling.messages(prompt), add_generation_prompt=True, tokenize=False
                )
            )
        except Exception as error:  # the template is the checkpoint's own program
            remedy = "without --system, or " if system is not None else ""
            raise SamplingError(
                f"model {self.name!r}: its chat template refused the prompt ({error}): try "
                f"{remedy}with --prompt-format plain"
            ) from error
        if system is not None and system.strip() not in text:
            raise SamplingError(
                f"model {self.name!r}: its chat template does not show --system: leave it out, or "
                "put it into the task's template"
            )
        return text


def fingerprint(folder: Path) -> str:
    """Names, sizes and content of a folder's weights, configuration and tokenizer, as one hash.

    Of large files it reads slices: of every tensor its beginning, middle and end.
    """
    digest = hashlib.sha256()
    found = {path for pattern in (*_WEIGHTS, *_OTHERS) for path in folder.glob(pattern)}
    for path in sorted(path for path in found if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder)}\0{size}\0".encode())
        with path.open("rb") as file:
            if size <= _READ_WHOLE_BYTES:
                digest.update(file.read())
                continue
            for start, length in _slices(file, size):
                file.seek(start)
                digest.update(file.read(length))
    return digest.hexdigest()[:16]


def _slices(file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Offsets and lengths that touch every tensor of a file, or a file of another kind evenly."""
    header = int.from_bytes(file.read(8), "little")
    try:
        if header > size:
            raise ValueError("not safetensors")
        tensors = json_value(file.read(header))
        tensors.pop("__metadata__", None)
        offsets = [entry["data_offsets"] for entry in tensors.values()]
        ranges = [(8 + header + start, 8 + header + end) for start, end in offsets]
    except (ValueError, KeyError, TypeError, AttributeError):
        yield from _spread(0, size, _SLICES_OF_A_FILE)
        return
    yield 0, 8 + header
    for start, end in sorted(ranges):
        yield from _spread(start, end, _SLICES_OF_A_TENSOR)


def _spread(start: int, end: int, count: int) -> Iterator[tuple[int, int]]:
    """`count` slices from one end of a range to the other; all of it if that is no more."""
    if end - start <= count * _SLICE_BYTES:
        yield start, end - start
        return
    for number in range(count):
        yield start + (end - start - _SLICE_BYTES) * number // (count - 1), _SLICE_BYTES
