"""How close evaluation comes to what the server, the verifier and the device allow.

    python benchmarks/eval.py --output results/eval.json

Four measurements, each against what bounds it; `--only` repeats some and leaves the others:

- `http`: a loopback server that answers every request after 50 ms, 64 requests in flight, whole
  runs (HTTP, verification, files): samples per second against 64 / 50 ms;
- `client`: the same requests without files and verification, by our client and by the `openai`
  package's (needs `openai[aiohttp]`), with the CPU time of one request;
- `overlap`: sampling and verification that take about as long as each other: the time of the run
  against the slower of the two by itself;
- `decoder`: the transformers backend on lengths with a long tail, against `generate` on one batch
  after another, in the same order and with the same model.
"""

import argparse
import asyncio
import contextlib
import functools
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from acpo.evaluate.backends import Request, Sampling
from acpo.evaluate.backends.openai import OpenAIBackend
from acpo.evaluate.run import plan, run
from acpo.tasks.grading import Judges
from acpo.tasks.questions import load_questions
from acpo.verify.verdict import Outcome, Verdict

LATENCY = 0.05
CONCURRENCY = 64
REPLY = json.dumps(
    {
        "choices": [{"message": {"content": "So \\boxed{7}."}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 6},
    }
).encode()


class FixedLatency(asyncio.Protocol):
    """Answers every request with `REPLY` after a fixed time, at next to no cost of its own."""

    latency = LATENCY

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = self.received[:end].lower()
            _, _, length = head.partition(b"content-length:")
            size = int(length.split(b"\r\n")[0]) if length else 0
            if len(self.received) < end + 4 + size:
                return
            self.received = self.received[end + 4 + size :]
            reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(REPLY) + REPLY
            asyncio.get_running_loop().call_later(self.latency, self.transport.write, reply)


def serve(latency: float, ports) -> None:
    FixedLatency.latency = latency

    async def forever() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(FixedLatency, "127.0.0.1", 0, backlog=256)
        ports.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(forever())


@contextlib.contextmanager
def server(latency: float) -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    process = context.Process(target=serve, args=(latency, ports), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ports.get()}/v1"
    finally:
        process.terminate()
        process.join()


def questions(folder: Path, count: int):
    path = folder / "sums.jsonl"
    rows = ({"problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_questions(str(path))


def timed_run(url: str, count: int, concurrency: int, judges) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        wanted = plan(questions(Path(scratch), count), 1)
        sampling = Sampling()
        backend = OpenAIBackend("any", sampling, base_url=url, concurrency=concurrency)
        start = time.perf_counter()
        run([wanted], backend, judges, output=Path(scratch) / "run")
        return time.perf_counter() - start


def measure_http(repeats: int) -> dict:
    count = 128 * CONCURRENCY
    ideal = CONCURRENCY / LATENCY
    with server(LATENCY) as url, Judges() as judges:
        timed_run(url, CONCURRENCY, CONCURRENCY, judges)
        rates = [count / timed_run(url, count, CONCURRENCY, judges) for _ in range(repeats)]
    return {
        "requests": count,
        "ideal_per_second": ideal,
        "per_second": [round(rate, 1) for rate in rates],
        "share_of_ideal": round(statistics.median(rates) / ideal, 3),
    }


class TimedJudges:
    """A verifier of known speed: `workers` at a time, `seconds` each."""

    def __init__(self, workers: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(workers)
        self._seconds = seconds

    def prepare(self, judge) -> None:
        """Nothing to start."""

    def verify(self, judge, text: str, row: dict) -> Future[Verdict]:
        return self._pool.submit(self._verify)

    def _verify(self) -> Verdict:
        time.sleep(self._seconds)
        return Verdict(Outcome.INCORRECT)


def measure_overlap(repeats: int) -> dict:
    """400 samples, 20 in flight at 250 ms, verified 4 at a time in 40, 50 and 60 ms each."""
    count, concurrency, latency, workers = 400, 20, 0.25, 4
    cases = []
    with server(latency) as url:
        for seconds in (0.04, 0.05, 0.06):
            alone, both = [], []
            for _ in range(repeats):
                sampling = timed_run(url, count, concurrency, TimedJudges(1, 0.0))
                verification = timed_verification(count, TimedJudges(workers, seconds))
                both.append(timed_run(url, count, concurrency, TimedJudges(workers, seconds)))
                alone.append((round(sampling, 3), round(verification, 3)))
            slower = statistics.median(max(pair) for pair in alone)
            cases.append(
                {
                    "sampling_and_verification_alone_seconds": alone,
                    "together_seconds": [round(wall, 3) for wall in both],
                    "over_the_slower": round(statistics.median(both) / slower, 3),
                }
            )
    return {"samples": count, "cases": cases}


def timed_verification(count: int, judges: TimedJudges) -> float:
    start = time.perf_counter()
    for future in [judges.verify(None, "", {}) for _ in range(count)]:
        future.result()
    return time.perf_counter() - start


def measure_decoder(repeats: int) -> dict:
    """Lengths are geometric: an untrained model ends with about one chance in 80 a token."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from acpo.evaluate.backends.decoder import Decoder, Job

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=80,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=2,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LlamaForCausalLM(config).eval().to(device)
    batch_size, limit, count = 16, 256, 128
    sampling = Sampling(max_tokens=limit)
    prompts = torch.randint(3, 80, (count, 32), generator=torch.Generator().manual_seed(1))
    jobs = [Job(i, prompts[i].tolist(), i) for i in range(count)]

    def ours() -> list[int]:
        decoder = Decoder(model, sampling, ends=frozenset({1}), batch_size=batch_size)
        return [len(done.tokens) - (done.tokens[-1] == 1) for done in decoder.run(jobs)]

    def naive() -> list[int]:
        lengths = []
        for start in range(0, count, batch_size):
            batch = prompts[start : start + batch_size].to(device)
            out = model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=limit,
                do_sample=True,
                top_k=0,
            )
            new = out[:, batch.shape[1] :]
            lengths += ((new != 0) & (new != 1)).sum(-1).tolist()
        return lengths

    def rates(generate) -> list[float]:
        found = []
        for _ in range(repeats):
            start = time.perf_counter()
            found.append(sum(generate()) / (time.perf_counter() - start))
        return found

    naive_rates, our_rates = rates(naive), rates(ours)
    lengths = sorted(ours())
    return {
        "device": device,
        "model": "Llama, 4 layers of 256, random weights",
        "batch_size": batch_size,
        "sequences": count,
        "length_median_mean_max": [
            lengths[count // 2],
            round(statistics.mean(lengths), 1),
            lengths[-1],
        ],
        "naive_tokens_per_second": [round(rate, 1) for rate in naive_rates],
        "tokens_per_second": [round(rate, 1) for rate in our_rates],
        "speedup": round(statistics.median(our_rates) / statistics.median(naive_rates), 2),
    }


def measure_client(repeats: int) -> dict:
    """Requests alone, without files and verification: our client, and `openai`'s in its forms."""
    forms = {
        "ours": client_of_ours,
        "openai": functools.partial(openai_client, aiohttp=False, raw=False),
        "openai, aiohttp": functools.partial(openai_client, aiohttp=True, raw=False),
        "openai, aiohttp, raw replies": functools.partial(openai_client, aiohttp=True, raw=True),
    }
    found: dict = {name: {"share_of_ideal": [], "cpu_milliseconds": []} for name in forms}
    with server(LATENCY) as url:
        for _ in range(repeats):
            for name, send in forms.items():
                count = 3000
                start, cpu = time.perf_counter(), time.process_time()
                send(url, count)
                rate = count / (time.perf_counter() - start)
                cost = 1000 * (time.process_time() - cpu) / count
                found[name]["share_of_ideal"].append(round(rate * LATENCY / CONCURRENCY, 3))
                found[name]["cpu_milliseconds"].append(round(cost, 3))
    return {"openai_version": importlib.metadata.version("openai"), **found}


def client_of_ours(url: str, count: int) -> None:
    requests = [Request(i, "What is 1 + 2?", i) for i in range(count)]
    backend = OpenAIBackend("any", Sampling(), base_url=url, concurrency=CONCURRENCY)
    assert sum(done.text == "So \\boxed{7}." for done in backend.sample(requests)) == count


def openai_client(url: str, count: int, *, aiohttp: bool, raw: bool) -> None:
    """One client, one task per request in flight. Raw replies are not made into pydantic models."""
    import openai

    async def send_all() -> None:
        http = openai.DefaultAioHttpClient() if aiohttp else openai.DefaultAsyncHttpxClient()
        async with openai.AsyncOpenAI(base_url=url, api_key="any", http_client=http) as client:
            completions = client.chat.completions
            create = completions.with_raw_response.create if raw else completions.create
            numbers = iter(range(count))

            async def send() -> None:
                for number in numbers:
                    reply = await create(
                        model="any",
                        messages=[{"role": "user", "content": "What is 1 + 2?"}],
                        temperature=1.0,
                        top_p=1.0,
                        max_tokens=8192,
                        seed=number,
                    )
                    if raw:
                        text = json.loads(reply.text)["choices"][0]["message"]["content"]
                    else:
                        text = reply.choices[0].message.content
                    assert text == "So \\boxed{7}."

            await asyncio.gather(*(send() for _ in range(CONCURRENCY)))

    asyncio.run(send_all())


MEASUREMENTS = {
    "http": measure_http,
    "client": measure_client,
    "overlap": measure_overlap,
    "decoder": measure_decoder,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=MEASUREMENTS, nargs="*", default=list(MEASUREMENTS))
    args = parser.parse_args()
    result: dict = {}
    if args.output and args.output.exists():
        result = json.loads(args.output.read_text(encoding="utf-8"))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, shared with other work"
    for name in args.only:
        load = round(os.getloadavg()[0], 1)
        result[name] = {
            "command": f"python benchmarks/eval.py --only {name} --repeats {args.repeats}",
            "machine": machine,
            "python": platform.python_version(),
            "load_before": load,
            **MEASUREMENTS[name](args.repeats),
        }
        print(json.dumps({name: result[name]}, indent=1), flush=True)
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
