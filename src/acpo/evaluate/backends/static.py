"""The static sampler in the decoder's place: on CUDA, where a step is one graph."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from acpo.errors import ACPOError, NonFiniteError
from acpo.evaluate.backends import Sampling, SamplingError
from acpo.evaluate.backends.decoder import Decoder, Finished, Job
from acpo.head import probe
from acpo.sampling import StaticSampler
from acpo.sampling.cache import StaticKV
from acpo.sampling.draw import uniform_table


class StaticDecoder:
    """Continues prompts as `Decoder` does, token for token up to rounding, through a sampler."""

    def __init__(self, sampler: StaticSampler, ends: frozenset[int]) -> None:
        self._sampler, self._ends = sampler, ends

    def run(self, jobs: Sequence[Job]) -> Iterator[Finished]:
        """Continue every job, in the order in which they end."""
        began: dict[int, float] = {}

        def uniforms(places: list[int]) -> torch.Tensor:
            began.update(dict.fromkeys(places, time.perf_counter()))
            new = self._sampler.new_tokens
            return torch.cat([uniform_table(1, new, jobs[place].seed) for place in places])

        try:
            for place, tokens, _ in self._sampler.stream([job.tokens for job in jobs], uniforms):
                finish = "stop" if tokens[-1] in self._ends else "length"
                seconds = time.perf_counter() - began[place]
                yield Finished(jobs[place].key, tokens, finish, seconds)
        except NonFiniteError as error:
            raise SamplingError(str(error)) from error


def make_decoder(
    model: Any,
    sampling: Sampling,
    *,
    ends: frozenset[int],
    batch_size: int,
    longest: int,
    **options: Any,
) -> Decoder | StaticDecoder:
    """The fastest that can draw what is asked, for prompts of at most `longest` tokens.

    The static sampler draws from whole distributions, knows no stop texts, holds the memory of
    `batch_size` longest sequences, and takes models of plain attention.
    """
    whole = sampling.top_p == 1 and not sampling.stop
    known = model.dtype in (torch.bfloat16, torch.float32)
    if whole and known and model.device.type == "cuda":
        rows, new = batch_size, sampling.max_tokens
        config = model.config.get_text_config()
        places = math.prod(StaticKV.shape(config, rows, longest + new))
        free, _ = torch.cuda.mem_get_info(model.device)
        try:
            if 4 * config.num_hidden_layers * places * model.dtype.itemsize <= free:
                probe.probe_head(model)
                sampler = StaticSampler(
                    model,
                    rows=rows,
                    max_new_tokens=new,
                    eos=sorted(ends),
                    pad=0,
                    temperature=sampling.temperature,
                    compiled=False,  # takes longer than most evaluations
                )
                sampler.prepare(longest)
                return StaticDecoder(sampler, ends)
        except ACPOError:  # the decoder reads it as transformers does
            pass
    return Decoder(model, sampling, ends=ends, batch_size=batch_size, **options)
