"""Where completions come from, behind one narrow interface."""

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from acpo.checkpoints import NoModelError
from acpo.errors import ACPOError


class SamplingError(ACPOError):
    """A backend that cannot be used, or gave up."""


class Sampling(NamedTuple):
    """How completions are drawn.

    Attributes:
        temperature: 0 takes the most probable token.
        top_p: Mass of the nucleus.
        max_tokens: Longest completion.
        stop: Texts that end a completion and are not part of it.
        chat: Whether the prompt is a user's message under the model's chat template, or plain text.
        system: System message; None sends none.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 8192
    stop: tuple[str, ...] = ()
    chat: bool = True
    system: str | None = None

    def messages(self, prompt: str) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system is not None else []
        return [*system, {"role": "user", "content": prompt}]

    def before_stop(self, text: str) -> str:
        """`text` up to the first of the stop texts; servers differ in whether they cut there."""
        return text[: min((text.find(stop) for stop in self.stop if stop in text), default=None)]


class Request(NamedTuple):
    """One completion to draw. `key` comes back with it; `seed` makes the draw its own."""

    key: Any
    prompt: str
    seed: int


class Completion(NamedTuple):
    """One completion.

    Attributes:
        key: That of its request.
        text: What the model wrote, without special tokens.
        tokens: How many tokens that was; None where a server does not say.
        finish: `stop`, or `length` when it was cut off at `max_tokens`.
        seconds: Time between admission and end.
        ids: The tokens, the one that ended it included; None where a server does not say.
        fingerprint: What a server says it is (`system_fingerprint`), where it does.
    """

    key: Any
    text: str
    tokens: int | None
    finish: str
    seconds: float
    ids: list[int] | None = None
    fingerprint: str | None = None


class Failure(NamedTuple):
    """A completion that could not be drawn, and what was said last.

    `refused` is a server that answers, and will not answer this prompt.
    """

    key: Any
    reason: str
    refused: bool = False


class Backend(Protocol):
    """A source of completions."""

    def settings(self) -> dict[str, Any]:
        """What the distribution of completions depends on. Cheap: loads no weights."""
        ...

    def sample(self, requests: Sequence[Request]) -> Iterator[Completion | Failure]:
        """Completions in the order they end, each requested one once, or why there is none.

        Raises:
            SamplingError: No further completions will come.
        """
        ...


_CLASSES = {"openai": "OpenAIBackend", "transformers": "TransformersBackend", "vllm": "VLLMBackend"}


def make_backend(name: str, model: str, sampling: Sampling, **options: Any) -> Backend:
    """The backend of that name, with the options its constructor takes; no other is imported."""
    module = importlib.import_module(f"{__name__}.{name}")
    try:
        backend: Backend = getattr(module, _CLASSES[name])(model, sampling, **options)
    except NoModelError as error:
        raise NoModelError(f"{error}, or --base-url for a served model") from error
    return backend
