"""Natural-like images from numpy: smooth 1/f backgrounds, shaded shapes, faces, lines of rendered text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["face", "page", "scene", "text_line"]

Image = npt.NDArray[np.float64]

# A 5x7 bitmap font; one string of 5-bit rows (as base-32 digits 0-9 a-v) per character.
FONT = {
    "A": "ehhvhhh", "B": "uhhuhhu", "C": "ehgggHe".lower(), "D": "uhhhhhu", "E": "vgguggv", "F": "vgguggg",
    "G": "ehgnhhf", "H": "hhhvhhh", "I": "e44444e", "K": "hikokih", "L": "ggggggv", "M": "hrllhhh",
    "N": "hhpljhh", "O": "ehhhhhe", "P": "uhhuggg", "R": "uhhukih", "S": "fgge11u", "T": "v444444",
    "U": "hhhhhhe", "V": "hhhhha4", "W": "hhhllla", "X": "hha4ahh", "Y": "hhha444", "Z": "v1248gv",
    "0": "ehjlphe", "1": "4c4444e", "2": "eh1248v", "3": "v24211e".replace("211e", "21he"), "4": "26aiv22",
    "5": "vgu11he", "6": "68guhhe", "7": "v124888", "8": "ehhehhe", "9": "ehhf12c",
}  # fmt: skip

# Signs and receipts; random letters would give lines that read the same upside down.
WORDS = (
    "TOTAL", "INVOICE", "NUMBER", "STREET", "PARKING", "BAKERY", "TICKET", "FLIGHT", "DEPARTURE", "ARRIVAL",
    "PLATFORM", "RECEIPT", "AMOUNT", "CASH", "CREDIT", "BALANCE", "DATE", "CUSTOMER", "ORDER", "LIBRARY",
    "MARKET", "CENTRAL", "STATION", "AIRPORT", "HOTEL", "COFFEE", "BREAD", "SALE", "PHARMACY", "GARDEN",
    "EXIT", "ENTRANCE", "REGISTER", "PRICE", "TAX", "DELIVERY", "ADDRESS", "SIGNATURE", "PAYMENT", "2024",
    "1937", "47", "3562", "75", "4921", "257", "1245",
)  # fmt: skip


def scene(height: int, width: int, seed: int) -> Image:
    """A smooth coloured background with shaded discs and bars, float64 [height, width, 3] in 0..255."""
    rng = np.random.default_rng(seed)
    image = _clouds(height, width, rng)
    y, x = np.mgrid[0:height, 0:width]
    for _ in range(rng.integers(4, 9)):
        cy, cx = rng.uniform(0, height), rng.uniform(0, width)
        ry, rx = rng.uniform(0.05, 0.3, 2) * min(height, width)
        inside = (((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2) < 1
        if rng.random() < 0.4:
            inside = (np.abs(y - cy) < ry) & (np.abs(x - cx) < rx)
        shade = 0.7 + 0.3 * np.clip((cx - x) / (2 * rx) + (cy - y) / (2 * ry), -1, 1)
        image[inside] = (rng.uniform(20, 235, 3) * shade[..., None])[inside]
    return np.clip(image + rng.normal(0, 3, image.shape), 0, 255)


def page(height: int, width: int, seed: int) -> Image:
    """A scene with several lines of text on it, float64 [height, width, 3] in 0..255."""
    rng = np.random.default_rng(seed)
    image = _clouds(height, width, rng) * 0.25 + rng.uniform(150, 190)
    for _ in range(rng.integers(3, 7)):
        scale = int(rng.integers(2, 6))
        mask = _words(int(rng.integers(4, 16)), scale, rng)
        mask = mask[:, : width - 4]
        if mask.shape[0] >= height:
            continue
        top = int(rng.integers(0, height - mask.shape[0]))
        left = int(rng.integers(0, max(1, width - mask.shape[1])))
        window = image[top : top + mask.shape[0], left : left + mask.shape[1]]
        window += mask[..., None] * (rng.uniform(0, 90, 3) - window)
    return np.clip(image + rng.normal(0, 2, image.shape), 0, 255)


def text_line(height: int, width: int, seed: int) -> Image:
    """One cropped line of text, float64 [height, width, 3] in 0..255."""
    rng = np.random.default_rng(seed)
    scale = height // int(rng.integers(9, 13))
    image = _clouds(height, width, rng) * 0.15 + rng.uniform(160, 215)
    mask = _words(max(1, width // (6 * scale)), scale, rng)[:height, : width - 4]
    top, left = (height - mask.shape[0]) // 2, 2
    window = image[top : top + mask.shape[0], left : left + mask.shape[1]]
    window += mask[..., None] * (rng.uniform(0, 80, 3) - window)
    return np.clip(image + rng.normal(0, 2, image.shape), 0, 255)


def face(size: int, seed: int) -> Image:
    """A drawn face (oval, eyes, mouth, shading) on a background, float64 [size, size, 3] in 0..255."""
    rng = np.random.default_rng(seed)
    image = _clouds(size, size, rng)
    y, x = (np.mgrid[0:size, 0:size] / size) - 0.5
    x, y = x - rng.uniform(-0.05, 0.05), y - rng.uniform(-0.05, 0.05)
    skin = np.array([205.0, 160.0, 135.0]) * rng.uniform(0.5, 1.15)
    shade = (1 - 0.5 * np.clip(x * rng.uniform(-2, 2) + y, -0.5, 0.5))[..., None]
    oval = _soft((x / 0.34) ** 2 + (y / 0.44) ** 2)
    image += oval * (skin * shade - image)
    for cx, cy, rx, ry, dark in (
        (-0.14, -0.1, 0.07, 0.035, 0.2),
        (0.14, -0.1, 0.07, 0.035, 0.2),
        (0, 0.06, 0.035, 0.09, 0.8),
        (0, 0.22, 0.13, 0.03, 0.45),
        (0, -0.42, 0.36, 0.16, 0.25),
    ):
        part = _soft(((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2)
        image += part * (skin * dark * shade - image)
    return np.clip(image + rng.normal(0, 3, image.shape), 0, 255)


def _soft(radius: Image) -> Image:
    """1 inside, 0 outside, a soft rim between."""
    return (1 / (1 + np.exp(np.clip(8 * (radius - 1), -50, 50))))[..., None]


def _clouds(height: int, width: int, rng: np.random.Generator) -> Image:
    """Noise with the 1/f amplitude spectrum of natural images (Field 1987), 0..255."""
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    falloff = 1 / np.maximum(np.hypot(fy, fx), 1 / max(height, width)) ** 1.2
    grey = rng.normal(size=(*falloff.shape, 1)) + 1j * rng.normal(size=(*falloff.shape, 1))
    tint = rng.normal(size=(*falloff.shape, 3)) + 1j * rng.normal(size=(*falloff.shape, 3))
    field = np.fft.irfft2((grey + 0.4 * tint) * falloff[..., None], (height, width), axes=(0, 1))
    field = field / field.std() * rng.uniform(25, 55) + rng.uniform(80, 170)
    return np.clip(field, 0, 255)


def _words(length: int, scale: int, rng: np.random.Generator) -> Image:
    """A mask [7 * scale, about 6 * scale * length] of words, blurred by one pixel."""
    text = WORDS[rng.integers(len(WORDS))]
    while len(text) < length:
        text += " " + WORDS[rng.integers(len(WORDS))]
    columns = []
    for letter in text:
        rows = FONT.get(letter, "0000000")
        bits = np.array([[(int(row, 32) >> (4 - i)) & 1 for i in range(5)] for row in rows], dtype=float)
        columns += [bits, np.zeros((7, 1))]
    mask = np.kron(np.concatenate(columns, axis=1), np.ones((scale, scale)))
    padded = np.pad(mask, 1)
    return (2 * mask + padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]) / 6
