"""A recorded file, what was compared in it, and the differences found."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


class GoldenError(Exception):
    """A file is no recorded file: unreadable, of no known kind, or without an entry that its kind has."""


class Recorded:
    """Entries of one file as tensors, with the record of which were read."""

    def __init__(self, path: Path) -> None:
        """Read an ``.npz`` file with an entry ``config``, JSON text.

        Raises:
            GoldenError: It cannot be read.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                self._entries = {name: archive[name] for name in archive.files}
            self.config: dict[str, Any] = json.loads(str(self._entries.pop("config")))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise GoldenError(f"{path} cannot be read: {error}") from error
        self._unread = set(self._entries)

    @property
    def names(self) -> set[str]:
        """Names of all entries besides ``config``."""
        return set(self._entries)

    @property
    def unread(self) -> list[str]:
        """Entries that nothing has read: what a comparison would have let pass."""
        return sorted(self._unread)

    def __getitem__(self, name: str) -> Tensor:
        """Give one entry."""
        if name not in self._entries:
            raise GoldenError(f"entry {name} is missing; present: {', '.join(sorted(self._entries))}")
        self._unread.discard(name)
        return torch.from_numpy(self._entries[name])

    def setting(self, name: str) -> Any:
        """Give one value of ``config``."""
        if name not in self.config:
            raise GoldenError(f"config has no {name}; present: {', '.join(sorted(self.config))}")
        return self.config[name]

    def require_sizes(self, entry: str, *settings: str) -> None:
        """Refuse a file whose entry has other sizes than ``config`` says, one setting per dimension.

        Raises:
            GoldenError: It has.
        """
        stated = [self.setting(name) for name in settings]
        found = list(self[entry].shape)
        if found != stated:
            raise GoldenError(f"{entry} has shape {found}, config says {', '.join(settings)} = {stated}")


class Comparison:
    """Collects what was compared and every difference; nothing stops at the first one."""

    def __init__(self) -> None:
        """Start with nothing compared."""
        self.compared: dict[str, float | int] = {}
        self.differences: list[str] = []

    def close(self, name: str, ours: Tensor, recorded: Tensor, rtol: float) -> None:
        """Compare relative to the recorded value; the worst difference is kept."""
        if ours.shape != recorded.shape:
            self.differences.append(f"{name} has shape {list(ours.shape)}, recorded {list(recorded.shape)}")
            return
        error = (ours.double() - recorded.double()).abs() / recorded.double().abs().clamp_min(1e-30)
        worst = float(error.nan_to_num(nan=float("inf")).max())
        self.compared[name] = float(f"{worst:.2g}")
        if not worst <= rtol:
            place = tuple(np.unravel_index(int(error.nan_to_num(nan=float("inf")).argmax()), error.shape))
            self.differences.append(
                f"{name}{list(map(int, place))} is {float(ours[place]):.6g}, recorded {float(recorded[place]):.6g}, "
                f"allowed relative difference {rtol:g}"
            )

    def equal(self, name: str, ours: Any, recorded: Any) -> None:
        """Compare integers exactly; the number of entries compared is kept, summed over parts such as ``name[3]``."""
        ours, recorded = torch.as_tensor(ours), torch.as_tensor(recorded)
        self._count(name, recorded.numel())
        if ours.shape != recorded.shape:
            self.differences.append(f"{name} has shape {list(ours.shape)}, recorded {list(recorded.shape)}")
        elif not torch.equal(ours.to(recorded.dtype), recorded):
            place = (ours != recorded).nonzero()[0].tolist()
            found, wanted = ours[tuple(place)].item(), recorded[tuple(place)].item()
            count = int((ours != recorded).sum())
            self.differences.append(f"{name}{place} is {found}, recorded {wanted}; {count} entries differ")

    def best(self, name: str, score: Tensor, kept: Tensor, *, margin: float = 0.0) -> None:
        """Check that ``kept`` holds the best of ``score [n]``: nothing below what was dropped, ties any way.

        Args:
            name: Named in a difference.
            score: [n].
            kept: Recorded positions, each once and in range.
            margin: Relative difference below which two scores count as tied.
        """
        self._count(name, kept.numel())
        if kept.unique().numel() != kept.numel() or not bool(((kept >= 0) & (kept < score.numel())).all()):
            self.differences.append(f"{name} holds a position twice, or one outside 0 to {score.numel() - 1}")
            return
        dropped = torch.ones_like(score, dtype=torch.bool)
        dropped[kept] = False
        if kept.numel() and bool(dropped.any()):
            least, most = float(score[kept].min()), float(score[dropped].max())
            if least < most * (1 - margin):
                self.differences.append(f"{name} keeps a score of {least:.6g} and drops one of {most:.6g}")

    def falling(self, name: str, score: Tensor, order: Tensor, rtol: float) -> None:
        """Check that ``score[order]`` never rises by more than ``rtol``."""
        values = score[order]
        if values.numel() > 1 and bool((values[1:] > values[:-1] * (1 + rtol)).any()):
            self.differences.append(f"{name} is not in order of falling scores")

    def ascending(self, name: str, kept: Tensor) -> None:
        """Check that positions ascend."""
        if bool((kept.diff() <= 0).any()):
            self.differences.append(f"{name} is not ascending")

    def _count(self, name: str, entries: int) -> None:
        whole = name.split("[")[0]
        self.compared[whole] = self.compared.get(whole, 0) + entries


def pieces(flat: Tensor, counts: list[list[int]]) -> list[list[Tensor]]:
    """Cut a flat recorded list, layer by layer and head by head, into ``[L][Hkv]`` pieces."""
    sizes = [count for row in counts for count in row]
    if sum(sizes) != flat.numel():
        raise GoldenError(f"a list of kept positions has {flat.numel()} entries, its counts sum to {sum(sizes)}")
    parts = iter(torch.split(flat, sizes))
    return [[next(parts) for _ in row] for row in counts]
