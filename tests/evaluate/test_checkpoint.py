"""Checkpoints are other people's files: damaged, with code or with templates of their own."""

import json

import pytest

from acpo.evaluate.backends import Sampling, SamplingError
from acpo.evaluate.backends.checkpoint import Checkpoint
from acpo.evaluate.backends.transformers import TransformersBackend
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


def test_a_checkpoint_s_own_code_is_not_run(tmp_path):
    model = save(tmp_path / "model")
    edit(model / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.Mine"})
    ran = tmp_path / "ran"
    (model / "mine.py").write_text(f"open({str(ran)!r}, 'w')\nclass Mine: pass\n")
    with pytest.raises(SamplingError, match="cannot be loaded"):
        Checkpoint(str(model), Sampling())
    assert not ran.exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_damaged_files_are_told(tmp_path, name):
    model = save(tmp_path)
    (model / name).write_bytes(b'{"a"')
    with pytest.raises(SamplingError, match="cannot be loaded"):
        TransformersBackend(str(model), Sampling(), device="cpu").load()
