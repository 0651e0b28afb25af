"""Costs that fit what computations took."""

import numpy


def by_ratios(terms, took):
    """Coefficients, at least 0, of rows of terms: the smallest sum of squares of predicted / took - 1, since what is
    fitted may differ by a factor of a hundred."""
    terms, took = numpy.array(terms, dtype=float), numpy.array(took, dtype=float)
    left = list(range(terms.shape[1]))
    while left:
        fit, *_ = numpy.linalg.lstsq(terms[:, left] / took[:, None], numpy.ones_like(took), rcond=None)
        if (fit >= 0).all():
            break
        left.remove(left[int(fit.argmin())])  # A cost that is less than nothing is none.
    found = [0.0] * terms.shape[1]
    for term, value in zip(left, fit if left else []):
        found[term] = float(value)
    return found


def chunk_terms(before, tokens):
    """Of x tokens behind L: overhead + token x + attention (2 L x + x^2)."""
    return [1, tokens, 2 * before * tokens + tokens * tokens]


def mean_error(cost, rows):
    """Of rows (terms, took): how far off the costs are, as a part of what it took."""
    return sum(abs(sum(c * t for c, t in zip(cost, terms)) / took - 1) for terms, took in rows) / len(rows)
