"""Moves a cpu generator past many draws without making them.

PyTorch's cpu generator is the Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998). Its words follow a linear
recurrence over GF(2), so the words after a jump are sums of words at hand: x^n modulo the characteristic
polynomial of the recurrence says which (Haramoto et al., 2008). Polynomials are Python ints, one bit a coefficient.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from cstorch._torch_private.generator import WORDS, read_twister, write_twister

_SHIFT = 397
_A = 0x9908B0DF
_DEGREE = 19937


def skip(state: torch.Tensor, words: int) -> torch.Tensor:
    """The generator state that drawing `words` 32-bit words leaves, starting from `state`."""
    if words == 0:
        return state
    block, drawn = read_twister(state)
    blocks, drawn = divmod(drawn + words - 1, WORDS)
    return write_twister(state, _block_after(block, blocks), drawn + 1)


def _block_after(block: np.ndarray, blocks: int) -> np.ndarray:
    if blocks == 0:
        return block
    block = _next_block(block)  # from here on every bit of every word follows the recurrence
    if blocks == 1:
        return block
    chain = [block]
    while len(chain) * WORDS < _DEGREE + WORDS:
        chain.append(_next_block(chain[-1]))
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate(chain), WORDS)
    terms = np.frombuffer(_power((blocks - 1) * WORDS).to_bytes(_DEGREE // 8 + 1, "little"), np.uint8)
    chosen = np.flatnonzero(np.unpackbits(terms, bitorder="little"))
    return np.bitwise_xor.reduce(windows[chosen], axis=0)  # type: ignore[no-any-return]


def _next_block(block: np.ndarray) -> np.ndarray:
    made = np.concatenate([block, np.zeros_like(block)])
    step = WORDS - _SHIFT
    for start in range(0, WORDS, step):  # words of one slice do not depend on each other
        i = np.arange(start, min(start + step, WORDS))
        mixed = (made[i] & np.uint32(0x80000000)) | (made[i + 1] & np.uint32(0x7FFFFFFF))
        odd = (mixed & np.uint32(1)) * np.uint32(_A)
        made[i + WORDS] = made[i + _SHIFT] ^ (mixed >> np.uint32(1)) ^ odd
    return made[WORDS:]


def _times(a: int, b: int) -> int:
    product = 0
    while b:
        low = b & -b
        product ^= a << (low.bit_length() - 1)
        b ^= low
    return product


@functools.cache
def _characteristic() -> tuple[int, ...]:
    """The exponents of the characteristic polynomial below its degree."""
    big, small = (1 << WORDS) | (1 << _SHIFT), (1 << (WORDS - 1)) | (1 << (_SHIFT - 1))
    powers = [1]
    for _ in range(31):
        powers.append(_times(powers[-1], small))
    polynomial = _times(powers[31], big)
    for i in range(31):
        if _A >> i & 1:
            polynomial ^= _times(powers[30 - i], big)
    if _A >> 31 & 1:
        polynomial ^= 1
    assert polynomial.bit_length() == _DEGREE + 1
    return tuple(i for i in range(_DEGREE) if polynomial >> i & 1)


def _reduced(polynomial: int) -> int:
    exponents = _characteristic()
    while polynomial.bit_length() > _DEGREE:
        high = polynomial >> _DEGREE
        polynomial &= (1 << _DEGREE) - 1
        for exponent in exponents:
            polynomial ^= high << exponent
    return polynomial


@functools.lru_cache(maxsize=1024)
def _power(n: int) -> int:
    """x^n modulo the characteristic polynomial."""
    power = 1
    for bit in f"{n:b}":
        power = int(f"{power:b}", 4)  # squaring over GF(2) puts a zero after every coefficient
        power = _reduced(power << 1 if bit == "1" else power)
    return power


def distance(start: torch.Tensor, end: torch.Tensor) -> int:
    """How many words were drawn between two states that are near each other."""
    (block, first), (target, last) = read_twister(start), read_twister(end)
    words = last - first
    while not np.array_equal(block, target):
        block = _next_block(block)
        words += WORDS
    return words
