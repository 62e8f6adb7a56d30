import pytest

from acpo import checkpoints
from acpo.checkpoints import load_tokenizer, resolve_model
from acpo.errors import ACPOError
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


def test_tokenizers_that_cannot_train(tmp_path):
    with pytest.raises(ACPOError, match="no tokenizer there"):
        load_tokenizer(str(tmp_path))
    tokenizer = ascii_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "unpadded")
    assert load_tokenizer(str(tmp_path / "unpadded")).pad_token == "<eos>"
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "endless")
    with pytest.raises(ACPOError, match="no end-of-sequence token"):
        load_tokenizer(str(tmp_path / "endless"))
