"""Checkpoints are other people's files: damaged, with code or with templates of their own."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from acpo.errors import ACPOError
from acpo.evaluate.backends import Request, Sampling, SamplingError, checkpoint
from acpo.evaluate.backends.checkpoint import Checkpoint, fingerprint
from acpo.evaluate.backends.transformers import TransformersBackend
from acpo.verify.extract import extract_answer
from evaluate.tinymodel import save


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_template_that_refuses_is_told(tmp_path):
    model = save(tmp_path)
    (model / "chat_template.jinja").write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}ok"
    )
    assert Checkpoint(str(model), Sampling()).tokens("hello")
    with pytest.raises(SamplingError, match=r"no system here\): try without --system, or with"):
        Checkpoint(str(model), Sampling(system="be brief")).tokens("hello")
    (model / "chat_template.jinja").write_text("{{ 1 / 0 }}")
    with pytest.raises(SamplingError, match=r"template refused.*try with --prompt-format plain"):
        Checkpoint(str(model), Sampling()).tokens("hello")


def test_a_template_without_a_place_for_the_system_text_is_told(tmp_path):
    model = save(tmp_path)
    (model / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    assert Checkpoint(str(model), Sampling()).tokens("hello")
    with pytest.raises(SamplingError, match="its chat template does not show --system"):
        Checkpoint(str(model), Sampling(system="be brief")).tokens("hello")


def test_thoughts_that_a_template_begins_are_thoughts(tmp_path):
    """Cut off within them, a completion has no answer: its first tag is in the prompt."""
    model = save(tmp_path)
    for end, tag in (("<think>\\n", "<think>"), ("<think>\\n\\n</think>", ""), ("", "")):
        (model / "chat_template.jinja").write_text("{{ messages[-1].content + '" + end + "' }}")
        assert Checkpoint(str(model), Sampling()).thinking("hello") == tag
        source = TransformersBackend(str(model), Sampling(max_tokens=3), device="cpu")
        (done,) = source.sample([Request("key", "hello", 1)])
        assert done.text.startswith("<think>") == bool(tag) and done.key == "key"
        assert extract_answer(done.text + "\\boxed{7}") == (None if tag else "7")


def test_an_adapters_revision_is_that_of_its_base_on_the_hub_too(tmp_path):
    found = object.__new__(Checkpoint)
    found.place, found.base = save(tmp_path), "me/base"
    found.config = SimpleNamespace(_commit_hash="c0ffee")
    mark, _, commit = found.revision.partition("+")
    assert mark == fingerprint(found.place) and commit == "c0ffee"


def test_a_checkpoint_s_own_code_is_not_run(tmp_path):
    model = save(tmp_path / "model")
    edit(model / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.Mine"})
    ran = tmp_path / "ran"
    (model / "mine.py").write_text(f"open({str(ran)!r}, 'w')\nclass Mine: pass\n")
    with pytest.raises(ACPOError, match="cannot be loaded"):
        Checkpoint(str(model), Sampling())
    assert not ran.exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_damaged_files_are_told(tmp_path, name):
    model = save(tmp_path)
    (model / name).write_bytes(b'{"a"')
    with pytest.raises(ACPOError, match=r"damaged or cut short.* copy"):
        TransformersBackend(str(model), Sampling(), device="cpu").load()


def test_a_tokenizer_that_gives_no_tokens_is_told(tmp_path):
    """As transformers makes one, where its files are missing."""
    source = Checkpoint(str(save(tmp_path)), Sampling(max_tokens=4, chat=False))
    source.tokenizer = lambda text: {"input_ids": []}
    with pytest.raises(ACPOError, match=r"prompt 0 has no tokens: .* are its files .* there"):
        source.prompts([Request("key", "hello", 1)])


@pytest.mark.parametrize("whole", [True, False])
def test_a_change_of_any_tensor_is_seen(tmp_path, monkeypatch, whole):
    """In the middle of a file, too, of whatever size."""
    if not whole:
        monkeypatch.setattr(checkpoint, "_READ_WHOLE_BYTES", 1 << 20)
    weights = {f"layers.{n}.weight": torch.zeros(640, 1024) for n in range(4)}
    weights |= {"norm.weight": torch.ones(64)}
    path = tmp_path / "model.safetensors"
    seen = set()
    for name in [None, *weights]:
        changed = {key: value + (key == name) for key, value in weights.items()}
        save_file(changed, path)
        seen.add(fingerprint(tmp_path))
    assert len(seen) == 1 + len(weights)
    save_file(changed, path)
    assert fingerprint(tmp_path) in seen


def test_large_files_of_another_kind_are_seen_all_over(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_READ_WHOLE_BYTES", 1 << 20)
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(bytes(40 << 20))
    before = fingerprint(tmp_path)
    with path.open("r+b") as file:
        file.seek(20 << 20)
        file.write(b"x" * (1 << 20))
    assert fingerprint(tmp_path) != before


@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "generation_config.json", "tokenizer.json", "vocab.json"]
)
def test_what_a_model_is_asked_with_belongs_to_it(tmp_path, name):
    seen = {fingerprint(tmp_path)}
    for text in ("{}", "{ }", '{"a": 1}'):
        (tmp_path / name).write_text(text)
        seen.add(fingerprint(tmp_path))
    (tmp_path / "trainer_state.json").write_text("{}")
    assert len(seen) == 4 and fingerprint(tmp_path) in seen
