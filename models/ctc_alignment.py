"""The likeliest CTC alignment of a target (Graves et al. 2006, https://doi.org/10.1145/1143844.1143891).

T frames emit a target of U words by every labelling that becomes the target when runs of a label are merged
and blanks are left out. The states of an alignment are blank, word 0, blank, word 1, ..., blank: a frame is
in one of these 2U + 1, and the next frame in the same, in the next, or past a blank in the one after it,
unless the two words beside the blank are the same.
Symbols: B rows, T frames, U target words, V words.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nartk.errors import UsageError

NO_STATE = -1  # of frames past a row's length, and of all frames where the target is impossible


@torch.no_grad()
def ctc_best_states(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, *, blank: int
) -> Tensor:
    """The states of the likeliest alignment -> [B,T] int64: 2u + 1 is target word u, even ones are blank.

    Of equally likely alignments it is the one that is farthest on at the last frame where they differ.
    Frames that do not count have `NO_STATE`, and so have all frames of an impossible target, whose
    `ctc_loss` is infinite: one with more words, and blanks between equal words, than frames, or with a
    probability of 0.

    Args:
        log_probs: [B,T,V], any floating type; they add up in float32, or in float64 if they are.
        targets: [B,U] int64 words; what lies past target_lengths [B] is not read.
        input_lengths: [B], frames that count, 0 to T.
        blank: The label of a frame that emits nothing; no target has it.

    Raises:
        UsageError: Shapes do not fit each other, or a length is out of its bounds.
    """
    frames, words = _check(log_probs, targets, input_lengths, target_lengths)
    batch, length = log_probs.shape[:2]
    every = torch.arange(2 * targets.shape[1] + 1, device=log_probs.device)
    real = torch.arange(targets.shape[1], device=log_probs.device) < words[:, None]
    targets = torch.where(real, targets, blank)
    labels = targets.new_full((batch, len(every)), blank)  # [B,2U+1]
    labels[:, 1::2] = targets
    skips = torch.zeros_like(labels, dtype=torch.bool)
    skips[:, 3::2] = targets[:, 1:] != targets[:, :-1]
    dtype = torch.promote_types(log_probs.dtype, torch.float32)
    impossible = log_probs.new_full((batch, 2), -math.inf, dtype=dtype)
    score = impossible[:, :1].expand(-1, len(every)).clone()  # [B,2U+1], of the likeliest path to each state
    score[:, 0] = 0.0  # before the first frame: from here it goes to the first blank or the first word

    back_pointers = []
    for t in range(length):
        emitted = log_probs[:, t].gather(1, labels).to(dtype)
        padded = torch.cat([impossible, score], 1)
        one, two = padded[:, 1:-1], padded[:, :-2]
        two = two.masked_fill(~skips, -math.inf)
        best = torch.maximum(torch.maximum(score, one), two)
        step = torch.where(best == score, 0, torch.where(best == one, 1, 2))
        back_pointers.append(step.to(torch.int8))
        score = torch.where((t < frames)[:, None], best + emitted, score)

    last = 2 * words
    ends = torch.stack([last, (last - 1).clamp(min=0)], 1)
    blank_last, word_last = score.gather(1, ends).unbind(1)
    at = torch.where(blank_last >= word_last, ends[:, 0], ends[:, 1])
    possible = torch.maximum(blank_last, word_last) > -math.inf
    states = targets.new_full((batch, length), NO_STATE)
    for t in range(length - 1, -1, -1):
        inside = (t < frames) & possible
        states[:, t] = torch.where(inside, at, NO_STATE)
        back = back_pointers[t].gather(1, at[:, None]).squeeze(1)
        at = torch.where(inside, at - back, at)
    return states


def labels_of(states: Tensor, targets: Tensor, *, blank: int) -> Tensor:
    """Labels that states [B,T] of an alignment to targets [B,U] emit -> [B,T]: blank, word or `NO_STATE`."""
    tokens = tokens_of(states)
    if targets.shape[1] == 0:
        words = torch.full_like(states, blank)
    else:
        words = torch.where(tokens >= 0, targets.gather(1, tokens.clamp(min=0)), blank)
    return torch.where(states == NO_STATE, NO_STATE, words)


def tokens_of(states: Tensor) -> Tensor:
    """The index of the target word that each frame of states [B,T] is aligned to -> [B,T]; -1: none."""
    return torch.where(states % 2 == 1, states.div(2, rounding_mode="floor"), -1)


def fewest_frames(targets: Tensor, target_lengths: Tensor) -> Tensor:
    """Counts frames that targets [B,U] of lengths [B] need -> [B]: a word each, a blank between equals."""
    positions = torch.arange(1, max(targets.shape[1], 1), device=targets.device)
    repeated = (targets[:, 1:] == targets[:, :-1]) & (positions < target_lengths[:, None])
    return target_lengths + repeated.sum(1)


def _check(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """The lengths as int64 beside the scores; raises UsageError."""
    if log_probs.dim() != 3 or targets.dim() != 2:
        raise UsageError(
            f"`log_probs` is {list(log_probs.shape)}, not [B,T,V], or `targets` {list(targets.shape)}, "
            "not [B,U]"
        )
    found = []
    for name, lengths, most in (
        ("input_lengths", input_lengths, log_probs.shape[1]),
        ("target_lengths", target_lengths, targets.shape[1]),
    ):
        if lengths.shape != log_probs.shape[:1] or len(targets) != len(log_probs):
            raise UsageError(
                f"`log_probs` has {len(log_probs)} rows, `targets` {len(targets)}, `{name}` {len(lengths)}"
            )
        if bool(((lengths < 0) | (lengths > most)).any()):
            raise UsageError(f"`{name}` {lengths.tolist()} are not all between 0 and {most}")
        found.append(lengths.to(log_probs.device, torch.int64))
    return found[0], found[1]
