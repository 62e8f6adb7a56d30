"""The local backend: equal to `generate`, whatever the company a sequence keeps."""

import signal
import time

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from acpo.errors import ACPOWarning
from acpo.evaluate.backends import Sampling, SamplingError
from acpo.evaluate.backends.decoder import Decoder, Job
from acpo.evaluate.backends.static import StaticDecoder, make_decoder
from acpo.evaluate.backends.transformers import TransformersBackend
from acpo.head.projection import Projection
from acpo.sampling import StaticSampler
from acpo.sampling.draw import draw
from evaluate.runs import acpo, lines, start, sums
from evaluate.tinymodel import save

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 2,
}
GREEDY = Sampling(temperature=0.0, max_tokens=16)


def tiny(kind: str = "llama"):
    torch.manual_seed(0)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES)).double().eval()
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)).double().eval()


def jobs(count: int) -> list[Job]:
    rng = np.random.default_rng(5)
    return [
        Job(index, rng.integers(3, 64, size=rng.integers(1, 14)).tolist(), index)
        for index in range(count)
    ]


def alone(model, job: Job, sampling: Sampling) -> list[int]:
    """What `generate` says to one prompt by itself."""
    out = model.generate(
        torch.tensor([job.tokens]),
        attention_mask=torch.ones(1, len(job.tokens), dtype=torch.long),
        max_new_tokens=sampling.max_tokens,
        do_sample=False,
    )
    return out[0, len(job.tokens) :].tolist()


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_greedy_equals_generate_one_by_one(kind, monkeypatch):
    monkeypatch.setattr("acpo.evaluate.backends.decoder._SPARE_TOKENS", 5)  # so that room runs out
    model = tiny(kind)
    # Ends that do come up, so that sequences end at different times and are replaced.
    ends = frozenset({1, *range(3, 64, 9)})
    model.generation_config.eos_token_id = sorted(ends)
    wanted = {job.key: alone(model, job, GREEDY) for job in jobs(15)}
    work = jobs(15) + [job._replace(key=100 + job.key) for job in jobs(6)]
    wanted |= {100 + key: wanted[key] for key in range(6)}
    assert len(set(map(len, wanted.values()))) > 3, "the sequences have different lengths"
    for batch_size in (1, 5, 64):
        decoder = Decoder(model, GREEDY, ends=ends, batch_size=batch_size)
        found = {done.key: done for done in decoder.run(work)}
        assert len(found) == len(work)
        for key, want in wanted.items():
            ended = want[-1] in ends
            assert found[key].tokens == want
            assert found[key].finish == ("stop" if ended else "length")


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_samples_do_not_depend_on_the_batch(top_p):
    model = tiny()
    sampling = Sampling(temperature=1.0, top_p=top_p, max_tokens=20)

    def run(batch_size: int, work: list[Job]) -> dict:
        decoder = Decoder(model, sampling, ends=frozenset({1, 7}), batch_size=batch_size)
        return {done.key: done.tokens for done in decoder.run(work)}

    whole = run(8, jobs(13))
    assert run(3, jobs(13)) == whole
    assert run(8, jobs(13)[7:9]) == {key: whole[key] for key in (7, 8)}
    other = [job._replace(seed=job.seed + 1000) for job in jobs(13)]
    assert run(8, other) != whole


def static(model, sampling: Sampling, *, ends: frozenset[int], batch_size: int) -> StaticDecoder:
    sampler = StaticSampler(
        model,
        rows=batch_size,
        max_new_tokens=sampling.max_tokens,
        eos=sorted(ends),
        pad=0,
        temperature=sampling.temperature,
    )
    return StaticDecoder(sampler, ends)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_static_sampler_says_what_the_decoder_says(temperature):
    model, work = tiny().float(), jobs(15)
    sampling = GREEDY._replace(temperature=temperature)
    ends = frozenset({1, *range(3, 64, 9)})

    def run(make, batch_size: int) -> dict:
        found = make(model, sampling, ends=ends, batch_size=batch_size).run(work)
        return {done.key: (done.tokens, done.finish) for done in found}

    wanted = run(Decoder, 5)
    assert {finish for _, finish in wanted.values()} == {"stop", "length"}
    for batch_size in (1, 5, 64):
        assert run(static, batch_size) == wanted


def test_each_completion_is_given_when_it_ends():
    model, sampling = tiny().float(), GREEDY._replace(temperature=1.0)
    given = static(model, sampling, ends=frozenset({1}), batch_size=2).run(jobs(6))
    assert next(given).seconds > 0
    assert len(list(given)) == 5


def test_without_a_gpu_the_decoder_it_is():
    made = make_decoder(
        tiny().float(), GREEDY, ends=frozenset({1}), batch_size=2, longest=4, says=str
    )
    assert isinstance(made, Decoder)


def test_draw_follows_the_distribution():
    logits = torch.log(torch.tensor([[0.5, 0.0, 0.3, 0.2]])).repeat(40_000, 1)
    uniforms = torch.from_numpy(np.random.default_rng(0).random(40_000))

    def shares(temperature=1.0, top_p=1.0):
        tokens, _ = draw(logits, uniforms, Projection(temperature), top_p)
        return np.bincount(tokens, minlength=4) / 40_000

    assert shares() == pytest.approx([0.5, 0.0, 0.3, 0.2], abs=0.01)
    assert shares(top_p=0.6) == pytest.approx([0.625, 0.0, 0.375, 0.0], abs=0.01)
    roots = np.sqrt([0.5, 0.0, 0.3, 0.2])
    assert shares(temperature=2.0) == pytest.approx(roots / roots.sum(), abs=0.01)


def test_edges_of_the_uniform_draw_no_impossible_token():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).repeat(2, 1)
    ends = torch.tensor([0.0, 1 - 1e-16], dtype=torch.float64)
    for top_p in (1.0, 0.9):
        assert draw(logits, ends, Projection(), top_p)[0].tolist() == [1, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_end_the_run(temperature):
    model = tiny()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    sampling = GREEDY._replace(temperature=temperature)
    for make, one in ((Decoder, model), (static, model.float())):
        decoder = make(one, sampling, ends=frozenset({1}), batch_size=2)
        with pytest.raises(SamplingError, match="after 0 new tokens are not finite"):
            list(decoder.run(jobs(3)))


def test_stop_texts_end_a_sequence():
    model = tiny()
    job = jobs(1)[0]
    free = alone(model, job, GREEDY)
    assert len(free) > 6
    word = f"<{free[4]}>"
    decoder = Decoder(
        model,
        GREEDY._replace(stop=(word,)),
        ends=frozenset({1}),
        batch_size=2,
        says=lambda tokens: "".join(f"<{token}>" for token in tokens),
    )
    (done,) = decoder.run([job])
    assert done.finish == "stop" and done.tokens == free[: free.index(free[4]) + 1]


def test_long_stop_texts_are_found():
    model = tiny()
    job = jobs(1)[0]
    long = GREEDY._replace(max_tokens=60)
    text = "".join(chr(64 + token) for token in alone(model, job, long))

    def says(tokens):
        return "".join(chr(64 + token) for token in tokens)

    sampling = long._replace(stop=(text[:45],))
    decoder = Decoder(model, sampling, ends=frozenset(), batch_size=1, says=says)
    (done,) = decoder.run([job])
    assert (done.finish, len(done.tokens)) == ("stop", 45)


def test_a_folder_end_to_end(tmp_path):
    model = save(tmp_path / "model")
    data = sums(tmp_path / "sums.jsonl", 5)
    run = ("eval", model, "--benchmarks", data, "--max-tokens", 12, "--output", tmp_path / "run")
    run += ("--workers", 1)
    done = acpo(*run, "--k", 3, "--batch-size", 4)
    assert done.returncode == 0, done.stderr
    rows = lines(tmp_path / "run" / "sums.jsonl")
    assert len(rows) == 16 and {row["finish"] for row in rows[1:]} <= {"stop", "length"}
    assert rows[0]["settings"]["dtype"] == "torch.float32"
    assert len({row["completion"] for row in rows[1:]}) == 15, "every sample has its own seed"
    save(model, seed=1)
    done = acpo(*run, "--k", 3)
    assert done.returncode == 2 and "was made with revision=" in done.stderr


def test_a_model_that_cannot_read_the_questions_is_told(tmp_path):
    data = sums(tmp_path / "sums.jsonl", 2)
    run = ("eval", "package:acpo/tasks/checkpoints/chain", "--benchmarks", data, "--max-tokens", 4)
    run += ("--prompt-format", "plain", "--k", 1, "--workers", 1, "--output", tmp_path / "run")
    told = "checkpoints/chain' cannot read the prompts: its tokenizer makes '<pad><pad>"
    with pytest.warns(ACPOWarning, match=told):
        acpo(*run)
    run = ("trace", run[1], "--data", data, "--n", 2, "--group", 2, "--max-tokens", 4)
    with pytest.warns(ACPOWarning, match=told):
        acpo(*run, "--output", tmp_path / "trace")


def test_ctrl_c_ends_a_run_whose_model_computes(tmp_path):
    run = ("eval", "package:acpo/tasks/checkpoints/chain", "--benchmarks", "chain", "--k", 400)
    run += ("--prompt-format", "plain", "--max-tokens", 24, "--output", tmp_path, "--workers", 1)
    process = start(*run)
    path = tmp_path / "chain.jsonl"
    while process.poll() is None and not (path.exists() and len(lines(path)) > 1):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert path.read_bytes().endswith(b"\n")


def test_a_model_without_template_says_what_to_do(tmp_path):
    model = save(tmp_path / "model", template=False)
    data = sums(tmp_path / "sums.jsonl", 2)
    run = ("eval", model, "--benchmarks", data, "--max-tokens", 4, "--output", tmp_path / "run")
    run += ("--workers", 1)
    done = acpo(*run)
    assert done.returncode == 2 and "--prompt-format plain" in done.stderr
    assert acpo(*run, "--prompt-format", "plain").returncode == 0


def test_models_that_do_not_fit_are_explained(tmp_path):
    data = sums(tmp_path / "sums.jsonl", 1)
    done = acpo("eval", tmp_path / "nothing", "--benchmarks", data, "--output", tmp_path / "run")
    assert done.returncode == 2 and "is no folder here" in done.stderr
    assert "or --base-url for a served model" in " ".join(done.stderr.split())
    model = save(tmp_path / "model")
    done = acpo("eval", model, "--benchmarks", data, "--output", tmp_path / "run")
    assert done.returncode == 2 and "the 512 positions of" in " ".join(done.stderr.split())


def test_a_gpu_that_is_named_is_the_current_one(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append(str(device)))
    monkeypatch.setattr(LlamaForCausalLM, "to", lambda model, device: done.append(device) or model)
    for device in ("cuda:1", "cuda", "cpu"):
        backend = TransformersBackend(str(save(tmp_path / "tiny")), GREEDY, device=device)
        backend.load()
    assert list(map(str, done)) == ["cuda:1", "cuda:1", "cuda", "cpu"]
