"""Models by name: files that are unpacked, and what is asked of a hub."""

from types import SimpleNamespace

import pytest
import transformers

from acpo import checkpoints
from acpo.checkpoints import load_tokenizer, resolve_model
from acpo.errors import ACPOError
from acpo.train.checks import shape_of
from train.standin import ascii_tokenizer, save_standin


def test_names(tmp_path):
    assert resolve_model("owner/name", tmp_path) == "owner/name"
    folder = resolve_model("package:acpo/tasks/checkpoints/chain", tmp_path)
    assert load_tokenizer(folder)("7+8:")["input_ids"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("package:no_such_package/x", "pip install no-such-package"),
        ("package:acpo/tasks/checkpoints/none", "has no 'tasks/checkpoints/none'"),
        ("nowhere.gguf", "is not a file"),
        ("./owner/name", "is no folder here: check the path, or give a hub id"),
        ("/no/such", "is no folder here"),
        ("runs/mine/final", "is no folder here"),
        (__file__, "is a file, not a folder: name the folder it is in"),
    ],
)
def test_missing(name, message, tmp_path):
    with pytest.raises(ACPOError, match=message):
        resolve_model(name, tmp_path)


def test_gguf_is_unpacked_once(tmp_path, monkeypatch):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    unpacked = []

    def unpack(source, folder):
        unpacked.append(source)
        save_standin(folder)

    monkeypatch.setattr(checkpoints, "unpack_gguf", unpack)
    folders = {resolve_model(str(file), tmp_path / "run") for _ in range(2)}
    assert folders == {str(tmp_path / "run" / "base-model")}
    assert unpacked == [file]


def test_gguf_needs_its_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ACPOError, match="pip install gguf"):
        checkpoints.unpack_gguf(tmp_path / "m.gguf", tmp_path)


def test_a_damaged_gguf_is_told_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(bytes(100))

    def read(*given, **options):
        raise KeyError("general.architecture")

    monkeypatch.setattr(checkpoints.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", read)
    with pytest.raises(ACPOError, match=r"m.gguf.*'general.architecture' is missing.*cut short"):
        resolve_model(str(tmp_path / "m.gguf"), tmp_path / "run")


def test_what_is_no_model_is_told_in_one_line(tmp_path):
    for name, said in (("nobody/nothing", "no such folder is here"), (str(tmp_path), "lacks a f")):
        with pytest.raises(ACPOError, match=said) as told:
            load_tokenizer(name)
        assert "\n" not in str(told.value)
    save_standin(tmp_path)
    (tmp_path / "config.json").write_text("{ nope")
    with pytest.raises(ACPOError, match=r"config.json' is not a valid JSON file\): it is damaged"):
        load_tokenizer(str(tmp_path))


def test_tokenizers_that_cannot_train(tmp_path):
    tokenizer = ascii_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "unpadded")
    assert load_tokenizer(str(tmp_path / "unpadded")).pad_token == "<eos>"
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "endless")
    with pytest.raises(ACPOError, match="no end-of-sequence token"):
        load_tokenizer(str(tmp_path / "endless"))


def test_a_folder_of_another_file_is_not_taken_for_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "unpack_gguf", lambda file, folder: folder.mkdir(parents=True))
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    first.write_bytes(b"a")
    second.write_bytes(b"bb")
    out = tmp_path / "run"
    assert resolve_model(str(first), out) == str(out / "base-model")
    assert resolve_model(str(first), out) == str(out / "base-model")
    with pytest.raises(ACPOError, match="was unpacked from another file"):
        resolve_model(str(second), out)
    before = checkpoints.unpacked_to(str(first))
    first.write_bytes(b"another")
    assert checkpoints.unpacked_to(str(first)) != before
    with pytest.raises(ACPOError, match="was unpacked from another file"):
        resolve_model(str(first), out)


def test_the_revision_that_trains_is_the_one_that_is_checked(monkeypatch):
    asked = []

    def read(name, **given):
        asked.append(given)
        return None, {}

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", read)
    config = SimpleNamespace(trust_remote_code=False, model_init_kwargs={"dtype": "float32"})
    for revision in ("v2", None):
        model = SimpleNamespace(model_revision=revision)
        shape_of(SimpleNamespace(config=config, model=model), "org/model")
    assert [given["revision"] for given in asked] == ["v2", "main"]
    assert not any("dtype" in given for given in asked), "of the weights, not of the shape"
