"""Completions from a model in this process, on one device."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from acpo.evaluate.backends import Completion, Request, Sampling, SamplingError
from acpo.evaluate.backends.decoder import Decoder, Job

_FINGERPRINT_BYTES = 1 << 20


class TransformersBackend:
    """A model loaded with `transformers`, its batch refilled as sequences end.

    Weights are loaded for the first sample, in the checkpoint's precision, or float32 on CPU.

    Args:
        model: Hub id or folder.
        sampling: How completions are drawn.
        batch_size: Sequences that run together.
        device: Where; None takes CUDA when there is one.

    Raises:
        SamplingError: There is no such model, or no chat template and `sampling.chat` asks for it.
    """

    def __init__(
        self, model: str, sampling: Sampling, *, batch_size: int = 32, device: str | None = None
    ) -> None:
        self._name = model
        self._sampling = sampling
        self._batch_size = batch_size
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self._config = AutoConfig.from_pretrained(model)
            self.tokenizer = AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError) as error:
            raise SamplingError(
                f"model {model!r} cannot be loaded: {str(error).splitlines()[0]} Give a hub id, a "
                "folder with config.json and a tokenizer, or --base-url for a served model"
            ) from error
        if sampling.chat and not self.tokenizer.chat_template:
            raise SamplingError(
                f"model {model!r} has no chat template: pass --prompt-format plain to send prompts "
                "as text"
            )

    def settings(self) -> dict[str, Any]:
        folder = Path(self._name)
        revision = getattr(self._config, "_commit_hash", None)
        return {
            "backend": "transformers",
            "model": self._name,
            "revision": fingerprint(folder) if folder.is_dir() else revision,
            "dtype": str(self._dtype()),
        }

    def sample(self, requests: Sequence[Request]) -> Iterator[Completion]:
        model = self.load()
        decoder = Decoder(
            model,
            self._sampling,
            ends=end_tokens(model, self.tokenizer),
            batch_size=self._batch_size,
            says=self._says,
        )
        prompts: dict[str, list[int]] = {}
        jobs = []
        for request in requests:
            if request.prompt not in prompts:
                prompts[request.prompt] = self.prompt_tokens(request.prompt)
            jobs.append(Job(request.key, prompts[request.prompt], request.seed))
        self.require_room(prompts.values())
        for key, tokens, finish, seconds, end in decoder.run(jobs):
            text = self._says(tokens)
            for stop in self._sampling.stop:
                text = text.partition(stop)[0]
            ids = tokens if end is None else [*tokens, end]
            yield Completion(key, text, len(tokens), finish, seconds, ids)

    def _dtype(self) -> torch.dtype:
        if self._device == "cpu":
            return torch.float32
        return getattr(self._config, "dtype", None) or torch.float32

    def load(self) -> Any:
        """The weights, in evaluation mode."""
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(self._name, dtype=self._dtype())
        except (OSError, ValueError) as error:
            raise SamplingError(f"model {self._name!r}: {str(error).splitlines()[0]}") from error
        return model.to(self._device).eval()

    def prompt_tokens(self, prompt: str) -> list[int]:
        """What the model reads for a prompt."""
        if not self._sampling.chat:
            return list(self.tokenizer(prompt)["input_ids"])
        text = self.tokenizer.apply_chat_template(
            self._sampling.messages(prompt), add_generation_prompt=True, tokenize=False
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _says(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def require_room(self, prompts: Iterable[list[int]]) -> None:
        """Refuse prompts whose completions may run past the model's positions."""
        room = getattr(self._config.get_text_config(), "max_position_embeddings", None)
        longest = max(map(len, prompts), default=0)
        if room is not None and longest + self._sampling.max_tokens > room:
            raise SamplingError(
                f"--max-tokens {self._sampling.max_tokens} and a prompt of {longest} tokens exceed "
                f"the {room} positions of {self._name!r}: --max-tokens {room - longest} fits"
            )


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a sequence."""
    declared = model.generation_config.eos_token_id
    ends = declared if isinstance(declared, list) else [declared]
    return frozenset(t for t in (*ends, tokenizer.eos_token_id) if t is not None)


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
