"""Weight files that are cut, broken or would run code are refused before anything of them is used."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_layouts import pickled
from eagle3_cases import CONFIG, tensors_of, toy_target, write

from engine.errors import UserError
from speculative.eagle3.checkpoint import load_draft, open_weights


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("kept", [0, 5, 2000, -1000])
def test_cut_files(name: str, kept: int, tmp_path: Path) -> None:
    make = write if name == "model.safetensors" else pickled
    folder = make(tmp_path / "x", CONFIG, tensors_of(CONFIG))
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:kept])
    size = len(whole[:kept])
    with pytest.raises(UserError, match=rf"{name} .*(truncated|broken).*") as caught:
        load_draft(folder, toy_target())
    assert str(size) in str(caught.value) or "broken" in str(caught.value)


class Runs:
    """A pickle that would call something."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("the pickle ran",))


def test_a_bin_file_cannot_run_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pickled(tmp_path / "x", CONFIG, tensors_of(CONFIG))
    torch.save({"fc.weight": Runs()}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="others may run code"):
        load_draft(folder, toy_target())
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Runs(), protocol=2))
    with pytest.raises(UserError, match="others may run code"):
        load_draft(folder, toy_target())
    assert capsys.readouterr().out == ""


def test_a_bin_file_of_something_else(tmp_path: Path) -> None:
    folder = pickled(tmp_path / "x", CONFIG, tensors_of(CONFIG))
    torch.save([torch.ones(3)], folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="no plain mapping"):
        load_draft(folder, toy_target())


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x02q\x00.", b"\x80\x02h\x05.", b"\x80\x02j\x13", b"PK\x03\x04"]
)
def test_a_broken_pickle_is_refused_however_it_breaks(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(UserError, match=r"pytorch_model\.bin (is truncated|holds more)"):
        open_weights(tmp_path)
