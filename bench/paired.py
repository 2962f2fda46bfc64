# SPDX-License-Identifier: Apache-2.0
"""What two programs' times say that were measured in pairs: how many times as long one takes as the other, and how sure that is.

The logarithms of the pairs' ratios are taken for independent and normal, so that Student's t gives an interval of their mean. What
slows both of a pair cancels; what slows one of them now and then makes the interval wider."""

import functools
import math
import statistics
from typing import NamedTuple


class Interval(NamedTuple):
    """Of the ratio b / a."""

    ratio: float
    low: float
    high: float

    @property
    def differs(self):
        return self.low > 1 or self.high < 1


def student_within(t, freedom):
    """The probability that a variable of Student's distribution is within -t and t; Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    even = freedom % 2 == 0
    term, total = (1.0 if even else cosine), 0.0
    for k in range(2 if even else 3, freedom + 1, 2):
        total += term
        term *= (k - 1) / k * cosine * cosine
    return sine * total if even else 2 / math.pi * (angle + sine * total)


@functools.cache
def student_bound(confidence, freedom):
    """The t that a variable of Student's distribution is within with this probability."""
    low, high = 0.0, 1.0
    while student_within(high, freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_within(middle, freedom) < confidence else (low, middle)
    return high


def interval(pairs, confidence):
    """The mean ratio b / a of pairs (a, b), and between what it lies with this confidence."""
    if len(pairs) < 3:
        raise ValueError(f"an interval takes 3 pairs or more, not {len(pairs)}")
    if any(not (0 < value < math.inf) for pair in pairs for value in pair):
        raise ValueError(f"ratios are of figures above 0: {pairs}")
    logs = [math.log(b / a) for a, b in pairs]
    middle = statistics.fmean(logs)
    variance = math.fsum((one - middle) ** 2 for one in logs) / (len(logs) - 1)
    margin = student_bound(confidence, len(logs) - 1) * math.sqrt(variance / len(logs))
    return Interval(math.exp(middle), math.exp(middle - margin), math.exp(middle + margin))


def intervals(lines, confidence):
    """An interval for each list of pairs, such that all of them hold at once with this confidence (Bonferroni)."""
    each = 1 - (1 - confidence) / max(1, len(lines))
    return [interval(pairs, each) for pairs in lines]


def percent(ratio):
    return 100 * (ratio - 1)


def words(found, more="slower", less="faster"):
    """What an interval says of b."""
    low, high = percent(found.low), percent(found.high)
    if found.low > 2:
        return f"B is {more}: {found.low:.1f} to {found.high:.1f} times A"
    if found.low > 1:
        return f"B is {more} by {low:.1f} to {high:.1f} %"
    if found.high < 1:
        return f"B is {less} by {-high:.1f} to {-low:.1f} %"
    return f"noise: B is between {low:+.1f} and {high:+.1f} % of A, and may be equal"
