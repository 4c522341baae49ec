"""Numbers of kept runs: measures of one run, and the 95% interval of a mean over seeds.

A measure is a function of a `Run` of runs.py and the name of a metric. It returns a number, or
None where the run has none.
"""
from math import sqrt
from statistics import NormalDist, mean, stdev

# Student's t of 1, 2, ..., 30 degrees of freedom: |T| is below it with probability 95%.
T = (12.7062047, 4.3026527, 3.1824463, 2.7764451, 2.5705818, 2.4469119, 2.3646243, 2.3060041,
     2.2621572, 2.2281389, 2.2009852, 2.1788128, 2.1603687, 2.1447867, 2.1314495, 2.1199053,
     2.1098156, 2.1009220, 2.0930241, 2.0859634, 2.0796138, 2.0738731, 2.0686576, 2.0638986,
     2.0595386, 2.0555294, 2.0518305, 2.0484071, 2.0452296, 2.0422725)


def half_width(values):
    """Half the width of the 95% confidence interval of the values' mean; None of one value."""
    dof = len(values) - 1                    # degrees of freedom
    if dof < 1:
        return None
    if dof <= len(T):
        t = T[dof - 1]
    else:                                    # Abramowitz and Stegun, 26.7.5
        z = NormalDist().inv_cdf(0.975)
        t = z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)
    return t * stdev(values) / sqrt(len(values))


def mean_of_last(run, key, rounds):
    """The mean of the last so many rounds, without those that have no value."""
    known = [x for x in run.by_round(key)[-rounds:] if x is not None]
    return mean(known) if known else None


def final(run, key):
    """The value of the last round."""
    return run.by_round(key)[-1]


def best(run, key):
    """The highest value of a round."""
    return max((x for x in run.by_round(key) if x is not None), default=None)


def megabytes_until(run, key, accuracy):
    """FedGEMS's ComU, Table 4: MB up and down until the metric `key` is `accuracy`. The metric is
    rounded to six decimals, as a .csv has about as many."""
    for row, value in zip(run.rows, run.by_round(key)):
        if value is not None and round(value, 6) >= accuracy:
            return row["MB"]
    return None
