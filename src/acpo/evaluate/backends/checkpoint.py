"""What the backends that load a model themselves share: all of it but the weights."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from acpo.checkpoints import adapter_base, resolve_model, tokenizer_place, unpacked_to
from acpo.evaluate.backends import Request, Sampling, SamplingError

_FINGERPRINT_BYTES = 1 << 20


class Checkpoint:
    """A model's configuration and tokenizer, and its prompts as tokens.

    `name` is a hub id, folder (a PEFT adapter's, too), `.gguf` file, or `package:NAME/PATH`;
    `place` is the folder or hub id behind it, and `base` the model below an adapter, or `place`.

    Raises:
        SamplingError: There is no such model, or no chat template and `sampling.chat` asks for it.
    """

    def __init__(self, name: str, sampling: Sampling) -> None:
        self.name = name
        self._sampling = sampling
        self.place = resolve_model(name, unpacked_to(name))
        self.base = adapter_base(self.place) or self.place
        try:
            # Said, not left out: left out, transformers asks the terminal whether to run its code.
            self.config = AutoConfig.from_pretrained(self.base, trust_remote_code=False)
            self.tokenizer = AutoTokenizer.from_pretrained(
                tokenizer_place(self.place), trust_remote_code=False
            )
        except Exception as error:  # a damaged checkpoint raises whatever its parser raises
            said = (str(error).splitlines() or [repr(error)])[0]
            raise SamplingError(
                f"model {name!r} cannot be loaded: {said} Give a hub id, a folder with "
                "config.json and a tokenizer, or --base-url for a served model"
            ) from error
        if sampling.chat and not self.tokenizer.chat_template:
            raise SamplingError(
                f"model {name!r} has no chat template: pass --prompt-format plain to send prompts "
                "as text"
            )
        self.dtype: torch.dtype = getattr(self.config, "dtype", None) or torch.float32

    def revision(self) -> str | None:
        """What tells these weights from others of the same name."""
        folders = [Path(place) for place in dict.fromkeys((self.place, self.base))]
        if any(folder.is_dir() for folder in folders):
            marks = [fingerprint(folder) for folder in folders if folder.is_dir()]
            return "+".join(marks)
        return getattr(self.config, "_commit_hash", None)

    def prompts(self, requests: Iterable[Request]) -> dict[str, list[int]]:
        """The tokens of every prompt.

        Raises:
            SamplingError: The longest one leaves no room for `max_tokens`.
        """
        texts = dict.fromkeys(request.prompt for request in requests)
        prompts = {text: self.tokens(text) for text in texts}
        self.require_room(prompts.values())
        return prompts

    def require_room(self, prompts: Iterable[Sequence[int]]) -> None:
        """Refuse prompts whose completions may run past the model's positions."""
        room = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        longest = max(map(len, prompts), default=0)
        if room is not None and longest + self._sampling.max_tokens > room:
            raise SamplingError(
                f"--max-tokens {self._sampling.max_tokens} and a prompt of {longest} tokens exceed "
                f"the {room} positions of {self.name!r}: --max-tokens {room - longest} fits"
            )

    def tokens(self, prompt: str) -> list[int]:
        """What the model reads for a prompt."""
        if not self._sampling.chat:
            return list(self.tokenizer(prompt)["input_ids"])
        try:
            text: Any = self.tokenizer.apply_chat_template(
                self._sampling.messages(prompt), add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # the template is the checkpoint's own program
            remedy = "without --system, or " if self._sampling.system is not None else ""
            raise SamplingError(
                f"model {self.name!r}: its chat template refused the prompt ({error}): try "
                f"{remedy}with --prompt-format plain"
            ) from error
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def fingerprint(folder: Path) -> str:
    """Names, sizes and both ends of a folder's weights and its configuration, as one hash."""
    digest = hashlib.sha256()
    patterns = ("*.safetensors", "*.bin", "config.json", "adapter_config.json")
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_FINGERPRINT_BYTES))
            file.seek(max(0, size - _FINGERPRINT_BYTES))
            digest.update(file.read(_FINGERPRINT_BYTES))
    return digest.hexdigest()[:16]
