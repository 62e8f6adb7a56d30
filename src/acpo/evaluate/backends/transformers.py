"""Completions from a model in this process, on one device."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from acpo.checkpoints import load_model, loading
from acpo.errors import ACPOError, reason
from acpo.evaluate.backends import Completion, Request, Sampling, SamplingError
from acpo.evaluate.backends.checkpoint import Checkpoint
from acpo.evaluate.backends.decoder import Job
from acpo.evaluate.backends.static import make_decoder


class TransformersBackend:
    """A model loaded with `transformers`, its batch refilled as sequences end.

    Weights are loaded for the first sample, in the checkpoint's precision, or float32 on CPU;
    `checkpoint` is all of the model but them. Without a `device`, CUDA where there is one.
    """

    def __init__(
        self, model: str, sampling: Sampling, *, batch_size: int = 32, device: str | None = None
    ) -> None:
        self.checkpoint = Checkpoint(model, sampling)
        self._sampling = sampling
        self._batch_size = batch_size
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = torch.float32 if self._device == "cpu" else self.checkpoint.dtype

    def settings(self) -> dict[str, Any]:
        return self.checkpoint.settings("transformers", self._dtype)

    def sample(self, requests: Sequence[Request]) -> Iterator[Completion]:
        prompts = self.checkpoint.prompts(requests)
        model = self.load()
        ends = end_tokens(model, self.checkpoint.tokenizer)
        decoder = make_decoder(
            model,
            self._sampling,
            ends=ends,
            batch_size=self._batch_size,
            longest=max(map(len, prompts.values()), default=1),
            says=self._says,
        )
        thinking = {prompt: self.checkpoint.thinking(prompt) for prompt in prompts}
        jobs = [Job(entry, prompts[entry.prompt], entry.seed) for entry in requests]
        for entry, ids, finish, seconds in decoder.run(jobs):
            said = ids[:-1] if ids[-1] in ends else ids  # the token that ended it is no text
            text = thinking[entry.prompt] + self._sampling.before_stop(self._says(said))
            yield Completion(entry.key, text, len(said), finish, seconds, ids)

    def load(self) -> Any:
        """The weights, in evaluation mode."""
        name, place = self.checkpoint.name, self.checkpoint.place
        try:
            device = torch.device(self._device)
            if device.type == "cuda" and device.index is not None:
                torch.cuda.set_device(device)  # where kernels and graphs run that name none
            with loading(place):
                model = load_model(place, dtype=self._dtype, trust_remote_code=False)
            return model.to(device).eval()
        except ACPOError:
            raise
        except Exception as error:  # a device that is not there, or has no room
            raise SamplingError(
                f"model {name!r} cannot be loaded onto --device {self._device}: {reason(error)}"
            ) from error

    def _says(self, tokens: list[int]) -> str:
        return str(self.checkpoint.tokenizer.decode(tokens, skip_special_tokens=True))


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a sequence."""
    declared = model.generation_config.eos_token_id
    ends = declared if isinstance(declared, list) else [declared]
    return frozenset(t for t in (*ends, tokenizer.eos_token_id) if t is not None)
