"""Annotators that are language models, and how a command line names them."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from acpo.annotate import questions
from acpo.annotate.endpoint import Endpoint, Failure, Reply
from acpo.annotate.exact import KIND as EXACT
from acpo.annotate.exact import ExactAnnotator
from acpo.annotate.outcomes import Annotator, Answer, Status, Usage
from acpo.annotate.pairs import Chars, Trajectory
from acpo.annotate.questions import SCHEMA, SYSTEM, Question
from acpo.annotate.replies import read_reply
from acpo.errors import ACPOError


@dataclass(frozen=True)
class Prices:
    """Money per million tokens read and written; None where they are not known."""

    read: float | None = None
    written: float | None = None

    def cost(self, usage: Usage) -> float | None:
        if self.read is None or self.written is None:
            return None
        return (usage.read * self.read + usage.written * self.written) / 1e6


class ModelAnnotator:
    """Asks a model. Answers are kept by question, model and address: none is paid for twice.

    Args:
        name: What its proposals are signed with.
        endpoint: Where the model is.
        cache: Folder of kept answers.
        prices: What its tokens cost.
    """

    def __init__(
        self, name: str, endpoint: Endpoint, *, cache: Path, prices: Prices | None = None
    ) -> None:
        self.name, self.prices = name, prices or Prices()
        self._endpoint, self._cache = endpoint, cache

    def settings(self) -> dict[str, object]:
        return {
            "kind": "model",
            "model": self._endpoint.model,
            "url": self._endpoint.url,
            "protocol": questions.PROTOCOL,
        }

    def first_error(self, wrong: Trajectory) -> Answer:
        return self._ask(questions.first_error(wrong), wrong.completion)

    def corresponding(self, wrong: Trajectory, error: Chars, right: Trajectory) -> Answer:
        return self._ask(questions.corresponding(wrong, error, right), right.completion)

    def _ask(self, question: Question, completion: str) -> Answer:
        file = self._file(question)
        kept = _read_kept(file)
        if kept is not None:
            return _answer(kept, completion)._replace(usage=Usage(cached=1))
        try:
            reply = self._endpoint.complete(SYSTEM, question.message())
        except Failure as failure:
            return Answer(failure.status, detail=str(failure))
        answer = _answer(reply, completion)
        if answer.status not in (Status.MALFORMED, Status.CUT_OFF):
            _keep(file, reply)
        return answer._replace(usage=Usage(reply.read, reply.written, requests=1))

    def _file(self, question: Question) -> Path:
        key = json.dumps([question.digest(), self._endpoint.model, self._endpoint.url])
        return self._cache / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def _answer(reply: Reply, completion: str) -> Answer:
    if reply.refusal or reply.finish == "content_filter":
        return Answer(Status.REFUSED, detail=reply.refusal[:300])
    if reply.finish == "length":
        return Answer(Status.CUT_OFF, detail=f"after {reply.written} tokens")
    return read_reply(reply.text, completion)


def _read_kept(file: Path) -> Reply | None:
    """A kept reply; None where there is none or the file is no longer what was written."""
    try:
        reply = Reply(**json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    kinds = (str, str, str, int, int)
    whole = all(type(value) is kind for value, kind in zip(reply, kinds, strict=True))
    return reply if whole else None


def _keep(file: Path, reply: Reply) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as partial:
        json.dump(reply._asdict(), partial)
    try:
        os.replace(partial.name, file)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(partial.name)
        raise


def parse_annotator(text: str, *, cache: Path, timeout: float, retries: int) -> Annotator:
    """An annotator from `exact` or `NAME=URL,model=MODEL[,key_env=VARIABLE][,prices=READ/WRITTEN]`.

    Raises:
        ACPOError: for anything else.
    """
    if text == EXACT:
        return ExactAnnotator()
    name, equals, rest = text.partition("=")
    url, *options = rest.split(",")
    given = dict(option.partition("=")[::2] for option in options)
    unknown = sorted(given.keys() - {"model", "key_env", "prices"})
    address = urlsplit(url)
    if not equals or unknown or address.scheme not in ("http", "https") or not address.hostname:
        raise ACPOError(
            f"--annotator {text!r}{f': {unknown[0]!r} is unknown' if unknown else ''}; give "
            f"{EXACT!r}, or NAME=URL,model=MODEL with an OpenAI-compatible URL up to /v1, and "
            "optionally ,key_env=VARIABLE and ,prices=READ/WRITTEN per million tokens"
        )
    if not re.fullmatch(r"[\w.-]{1,64}", name) or name == EXACT:
        raise ACPOError(f"--annotator {text!r}: call it by letters, digits, '.', '_' or '-'")
    if address.username or address.password:
        raise ACPOError(f"--annotator {name}: put the key in a variable, key_env=..., not the URL")
    if not given.get("model"):
        raise ACPOError(f"--annotator {name}: name the model: {name}={url},model=...")
    endpoint = Endpoint(
        url,
        model=given["model"],
        form=SCHEMA,
        api_key_env=given.get("key_env", "OPENAI_API_KEY"),
        timeout=timeout,
        retries=retries,
    )
    return ModelAnnotator(name, endpoint, cache=cache, prices=_prices(name, given.get("prices")))


def parse_annotators(texts: list[str], **options: Any) -> list[Annotator]:
    """Annotators with names of their own, none of them the same model at the same address.

    Raises:
        ACPOError: for two that are not independent.
    """
    annotators = [parse_annotator(text, **options) for text in texts]
    if not annotators:
        raise ACPOError(f"--annotator: name one or two, {EXACT!r} or NAME=URL,model=MODEL")
    if len({annotator.name for annotator in annotators}) < len(annotators):
        raise ACPOError("--annotator: two have the same name: give each its own")
    if len({json.dumps(annotator.settings()) for annotator in annotators}) < len(annotators):
        raise ACPOError("--annotator: the same model twice is not two independent annotators")
    return annotators


def _prices(name: str, text: str | None) -> Prices:
    if text is None:
        return Prices()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)", text)
    if match is None:
        raise ACPOError(f"--annotator {name}: prices={text!r} must be like 2.5/10")
    return Prices(float(match[1]), float(match[2]))
