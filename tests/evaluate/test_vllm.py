"""The vLLM backend, against a stand-in with vLLM's interface (and vLLM itself where it is)."""

import importlib
import json
import lzma
import sys
import tarfile
from pathlib import Path

import pytest

from acpo.errors import ACPOError
from acpo.evaluate.backends import Failure, Request, Sampling, SamplingError, make_backend
from acpo.evaluate.backends.transformers import TransformersBackend
from acpo.evaluate.run import plan, run
from acpo.tasks.grading import Judges
from acpo.tasks.questions import load_questions
from evaluate.runs import lines, sums, timeless
from evaluate.tinymodel import save
from fakevllm import signatures

FAKE = Path(__file__).parents[1] / "fakevllm"
SOURCES = Path(__file__).resolve().parents[3] / "shared" / "vllm" / "vllm_h200.tar"
SAMPLING = Sampling(max_tokens=64)


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.fixture
def vllm(monkeypatch):
    monkeypatch.syspath_prepend(str(FAKE))
    forget()
    module = importlib.import_module("vllm")
    assert Path(module.__file__).is_relative_to(FAKE)
    yield module
    forget()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(save(tmp_path_factory.mktemp("model")))


def backend(model: str, sampling: Sampling = SAMPLING, **options):
    return make_backend("vllm", model, sampling, **options)


def requests(count: int) -> list[Request]:
    return [Request(f"key {i}", f"What is {i // 4} + 1?", 1000 + i) for i in range(count)]


def test_every_request_is_answered_once_with_its_own_seed(vllm, model):
    found = list(backend(model).sample(requests(24)))
    assert sorted(entry.key for entry in found) == sorted(f"key {i}" for i in range(24))
    assert len({entry.text for entry in found}) == 24, "four samples of a prompt differ"
    (engine,) = vllm.ENGINES
    assert [params.seed for _, params in engine.admitted] == list(range(1000, 1024))
    assert {params.n for _, params in engine.admitted} == {1}
    again = {entry.key: entry.text for entry in backend(model).sample(requests(24)[7:9])}
    assert again == {entry.key: entry.text for entry in found if entry.key in again}


def test_samples_arrive_as_they_end(vllm, model):
    """The first ones are here while most are still to come, and a short one overtakes."""
    arriving = backend(model, batch_size=8).sample(requests(40))
    first = [next(arriving) for _ in range(5)]
    (engine,) = vllm.ENGINES
    assert len(engine.running) + len(engine.waiting) > 0 and len(engine.admitted) < 40
    rest = list(arriving)
    keys = [entry.key for entry in first + rest]
    assert len(set(keys)) == 40 and keys != [entry.key for entry in requests(40)]
    assert engine.most_at_once == 8 == engine.args.max_num_seqs


def test_what_is_asked_of_the_engine(vllm, model):
    sampling = Sampling(0.7, 0.9, 32, ("cab",), True, "be brief")
    list(backend(model, sampling, batch_size=2).sample(requests(3)))
    (engine,) = vllm.ENGINES
    tokens, params = engine.admitted[0]
    text = engine.tokenizer.decode(tokens)
    assert text == "<system>be brief\n<user>What is 0 + 1?\n", "under the model's template"
    assert (params.temperature, params.top_p, params.max_tokens) == (0.7, 0.9, 32)
    assert params.stop == ["cab"]
    assert engine.args.model == model and engine.args.dtype == "float32"
    assert engine.args.max_model_len == len(tokens) + 32, "room for the longest, and no more"


def test_why_a_sample_ended(vllm, model):
    free = {entry.key: entry for entry in backend(model).sample(requests(40))}
    assert {entry.finish for entry in free.values()} == {"stop"}
    assert all(entry.tokens == len(entry.text) for entry in free.values()), "one letter a token"
    cut = {
        entry.key: entry
        for entry in backend(model, SAMPLING._replace(max_tokens=10)).sample(requests(40))
    }
    for key, entry in free.items():
        assert cut[key].text == entry.text[:10]
        # A sequence of ten letters is cut before it can end.
        assert cut[key].finish == ("stop" if len(entry.text) < 10 else "length")
        assert cut[key].tokens == min(len(entry.text), 10)
    word = backend(model, SAMPLING._replace(stop=("ab",))).sample(requests(40))
    stopped = {entry.key: entry for entry in word if "ab" in free[entry.key].text}
    assert len(stopped) > 3
    for key, entry in stopped.items():
        assert entry.finish == "stop" and entry.text == free[key].text.partition("ab")[0]
        assert entry.tokens == len(entry.text) + 2, "the model did write the stop text"


def test_prompts_that_leave_no_room(vllm, model):
    with pytest.raises(SamplingError, match=r"the 512 positions of .* fits"):
        list(backend(model, Sampling(max_tokens=512)).sample(requests(1)))
    assert vllm.ENGINES == [], "found out before anything was loaded"


def test_an_engine_that_dies_keeps_what_had_come(vllm, model, tmp_path):
    wanted = plan(load_questions(str(sums(tmp_path / "sums.jsonl", 12))), 2)

    def complete(folder: str) -> None:
        source = backend(model, batch_size=4)
        run([wanted], source, judges, output=tmp_path / folder)

    with Judges(1) as judges:
        complete("calm")
        vllm.FAULTS["die"] = 60
        with pytest.raises(SamplingError, match=r"EngineCore encountered an issue.(?s:.*)kept"):
            complete("broken")
        broken = lines(tmp_path / "broken" / "sums.jsonl")
        kept = sum("completion" in line for line in broken)
        assert 3 < kept < 24
        vllm.FAULTS.clear()
        complete("broken")
    assert len(vllm.ENGINES[-1].admitted) == 24 - kept, "nothing is drawn twice"
    files = [tmp_path / folder / "sums.jsonl" for folder in ("broken", "calm")]
    assert timeless(files[0]) == timeless(files[1])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"start": ValueError("No available memory for the cache blocks.")}, "No available memory"),
        ({"drop": 3}, "dropped 6 requests"),
    ],
)
def test_failures_of_the_engine_are_told(vllm, model, fault, said):
    vllm.FAULTS.update(fault)
    with pytest.raises(SamplingError, match=said):
        list(backend(model, SAMPLING._replace(max_tokens=8)).sample(requests(6)))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"reason": "abort"}, "with 'abort'"),
        ({"reason": "error"}, "with 'error'"),
        ({"empty": True}, "without an output"),
    ],
)
def test_a_request_that_the_engine_gives_up_fails_alone(vllm, model, fault, said):
    vllm.FAULTS.update(fault)
    found = list(backend(model, SAMPLING._replace(max_tokens=8)).sample(requests(6)))
    assert len(found) == 6 and all(isinstance(one, Failure) and said in one.reason for one in found)


def test_refused_sampling_is_told(vllm, model):
    with pytest.raises(SamplingError, match="top_p must be in"):
        list(backend(model, SAMPLING._replace(top_p=0.0)).sample(requests(1)))


def test_a_model_without_template_says_what_to_do(vllm, tmp_path):
    bare = str(save(tmp_path, template=False))
    with pytest.raises(SamplingError, match="--prompt-format plain"):
        backend(bare)
    assert len(list(backend(bare, SAMPLING._replace(chat=False)).sample(requests(2)))) == 2


def test_an_engine_that_is_there_is_used(vllm, model):
    given = vllm.LLM(model=model, max_model_len=256, max_num_seqs=4)
    shared = backend(model, batch_size=4, engine=given.llm_engine)
    broken = shared.sample(requests(6))
    next(broken)
    broken.close()
    assert not given.llm_engine.has_unfinished_requests(), "what nobody waits for is let go"
    assert len(list(shared.sample(requests(6)))) == 6
    assert [given.llm_engine] == vllm.ENGINES


def test_the_stand_in_is_made_from_the_signatures_of_vllm(vllm):
    """Of the sources beside this checkout, where there are some; what they lack is refused."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'top_q'"):
        vllm.SamplingParams(top_q=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_length'"):
        vllm.EngineArgs(model="x", max_length=3)
    if not SOURCES.is_file():
        pytest.skip("no sources of vLLM beside this checkout")
    with (
        tarfile.open(SOURCES) as outer,
        lzma.open(outer.extractfile("py.tar.xz")) as packed,
        tarfile.open(fileobj=packed) as inner,
    ):
        wanted = {f"vllm/{path}" for path, _ in signatures.WANTED.values()}
        texts = {
            member.name.removeprefix("./"): inner.extractfile(member).read().decode()
            for member in inner
            if member.name.removeprefix("./") in wanted
        }
    real = signatures.signatures(lambda path: texts[f"vllm/{path}"])
    assert real == json.loads(signatures.FILE.read_text())


def test_without_vllm_it_says_how_to_get_it(monkeypatch, model):
    forget()
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ACPOError, match="pip install vllm"):
        backend(model)


@pytest.mark.gpu
def test_vllm_itself_equals_transformers(model):
    forget()
    pytest.importorskip("vllm")
    greedy = Sampling(temperature=0.0, max_tokens=16)
    ours = TransformersBackend(model, greedy, device="cuda").sample(requests(6))
    texts = {entry.key: (entry.text, entry.tokens, entry.finish) for entry in ours}
    for entry in backend(model, greedy).sample(requests(6)):
        assert texts[entry.key] == (entry.text, entry.tokens, entry.finish)
