"""Speech-like audio from numpy at 16 kHz: voiced syllables with formants, fricatives, pauses, room noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["SAMPLE_RATE", "speech"]

SAMPLE_RATE = 16_000
# First three formants in Hz of /a e i o u/, a man's voice (Peterson & Barney 1952, table II, rounded).
VOWELS = ((730, 1090, 2440), (530, 1840, 2480), (270, 2290, 3010), (570, 840, 2410), (300, 870, 2240))
BANDWIDTHS = (90.0, 110.0, 170.0)
LEVEL = 10 ** (-26 / 20)  # root mean square of active speech: -26 dBov, the level of ITU-T P.56 test material

Audio = npt.NDArray[np.float32]


def speech(samples: int, seed: int) -> Audio:
    """Make speech-like audio.

    Args:
        samples: length at 16 kHz.
        seed: same seed, same audio.

    Returns:
        float32 [samples] within -1..1.
    """
    rng = np.random.default_rng(seed)
    out = rng.normal(0, 1, samples)
    out *= 10 ** rng.uniform(-2.5, -1.5)  # 20 to 40 dB of signal to noise
    active = np.zeros(samples, bool)
    pitch = rng.uniform(90, 240)
    at = int(rng.uniform(0, 0.15) * SAMPLE_RATE)
    while at < samples:
        kind = rng.choice(3, p=[0.6, 0.2, 0.2])
        length = int(rng.uniform(0.06, 0.28) * SAMPLE_RATE)
        if kind == 0:
            sound = _voiced(length, pitch * rng.uniform(0.85, 1.2), rng)
        elif kind == 1:
            sound = _fricative(length, rng)
        else:
            sound = np.zeros(int(length * rng.uniform(0.5, 2)))
        end = min(samples, at + len(sound))
        out[at:end] += sound[: end - at]
        active[at:end] = kind != 2
        at = end
    level = np.sqrt(np.mean(out[active] ** 2)) if active.any() else 1.0
    gain = LEVEL * 10 ** (rng.uniform(-4, 4) / 20) / level
    return np.clip(out * gain, -1, 1).astype(np.float32)


def _voiced(length: int, pitch: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    time = np.arange(length) / SAMPLE_RATE
    glide = pitch * (1 + rng.uniform(-0.15, 0.15) * time / time[-1] + 0.01 * np.sin(2 * np.pi * 5 * time))
    phase = 2 * np.pi * np.cumsum(glide) / SAMPLE_RATE
    formants = np.array(VOWELS[rng.integers(len(VOWELS))]) * rng.uniform(0.9, 1.2)
    sound = np.zeros(length)
    for harmonic in range(1, int(7000 / pitch)):
        f = harmonic * pitch
        gain = sum(1 / np.hypot(1, (f - c) / b) for c, b in zip(formants, BANDWIDTHS, strict=True))
        sound += gain / harmonic**0.5 * np.sin(harmonic * phase + rng.uniform(0, 2 * np.pi))
    return sound / np.sqrt(np.mean(sound**2)) * np.hanning(length) * rng.uniform(0.3, 1)


def _fricative(length: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    spectrum = np.fft.rfft(rng.normal(0, 1, length))
    frequency = np.fft.rfftfreq(length, 1 / SAMPLE_RATE)
    centre, width = rng.uniform(2500, 6500), rng.uniform(800, 2500)
    shaped = np.fft.irfft(spectrum * np.exp(-(((frequency - centre) / width) ** 2)), length)
    return shaped / np.sqrt(np.mean(shaped**2)) * np.hanning(length) * rng.uniform(0.1, 0.4)
