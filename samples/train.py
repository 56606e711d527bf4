"""Train the bundled samples on scikit-learn's digits and write them here as ONNX files with labelled inputs.

    python -m venv /tmp/train
    /tmp/train/bin/pip install torch onnx onnxscript onnxruntime scikit-learn
    /tmp/train/bin/python samples/train.py

Deterministic on one machine (fixed seeds, one thread); another BLAS may change the weights' last digits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxscript.optimizer
import torch
from onnx_ir.passes import common as passes
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HERE = Path(__file__).resolve().parent
SEED = 7
CALIBRATION_ROWS = 256


class ConvNet(nn.Module):
    """Convolutions with BatchNorm, one of them depthwise, and a residual: 8x8 images to 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.depthwise = nn.Sequential(
            nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), nn.BatchNorm2d(32), nn.SiLU()
        )
        self.pointwise = nn.Sequential(nn.Conv2d(32, 32, 1, bias=False), nn.BatchNorm2d(32))
        self.down = nn.Sequential(
            nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
        )
        self.head = nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)
        x = torch.relu(x + self.pointwise(self.depthwise(x)))
        return self.head(self.down(x).mean((2, 3)))


class Block(nn.Module):
    """Pre-norm transformer block with explicit softmax attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).reshape(split).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """The eight rows of the image as tokens, two blocks: to 10 classes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(torch.randn(1, 8, width) * 0.02)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.embed(image.squeeze(1)) + self.position
        return self.head(self.norm(self.blocks(x)).mean(1))


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    """Adam with a one-cycle schedule, batches of 64, shifted copies as augmentation."""
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=1e-2)
    steps = epochs * -(-len(images) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(64):
            shift = tuple(int(s) for s in torch.randint(-1, 2, (2,)))
            batch = torch.roll(images[rows], shift, (2, 3))
            loss = nn.functional.cross_entropy(model(batch), labels[rows], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    model.eval()


def export(model: nn.Module, path: Path) -> None:
    """Write one ONNX file with a symbolic batch dimension and inline weights."""
    # Not optimised by the exporter: it would fold BatchNormalization into the convolutions, and a sample
    # should look like the models people have. Only constants are folded.
    program = torch.onnx.export(
        model,
        (torch.zeros(2, 1, 8, 8),),
        input_names=["image"],
        output_names=["logits"],
        dynamic_shapes={"image": {0: torch.export.Dim("batch")}},
        opset_version=20,
        dynamo=True,
        optimize=False,
        verbose=False,
    )
    onnxscript.optimizer.fold_constants(program.model)
    for clean in (
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.IdentityEliminationPass(),
        passes.RemoveUnusedNodesPass(),
        passes.DeduplicateInitializersPass(),
    ):
        clean(program.model)
    proto = program.model_proto
    for node in proto.graph.node:
        del node.metadata_props[:]  # stack traces of this machine
    for value in [*proto.graph.value_info, *proto.graph.input, *proto.graph.output]:
        del value.metadata_props[:]
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, path)


def accuracy(path: Path, images: np.ndarray, labels: np.ndarray) -> float:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return float(np.mean(session.run(None, {"image": images})[0].argmax(1) == labels))


def main() -> None:
    torch.set_num_threads(1)
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    labels = digits.target.astype(np.int64)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.3, random_state=SEED, stratify=labels
    )
    calibration = HERE / "digits_calibration.npz"
    np.savez_compressed(calibration, image=train_x[:CALIBRATION_ROWS])
    np.savez_compressed(HERE / "digits_test.npz", image=test_x, labels=test_y)
    for name, build, epochs in (("digits_cnn", ConvNet, 40), ("digits_transformer", Transformer, 80)):
        torch.manual_seed(SEED)
        model = build()
        train(model, torch.from_numpy(train_x), torch.from_numpy(train_y), epochs)
        path = HERE / f"{name}.onnx"
        export(model, path)
        parameters = sum(p.numel() for p in model.parameters())
        print(f"{path.name}: {parameters} parameters, {path.stat().st_size} bytes")
        print(f"  accuracy on {len(test_y)} test images: {accuracy(path, test_x, test_y):.4f}")


if __name__ == "__main__":
    main()
