"""The statistics of the verdicts: short and pure; tests compare them with scipy."""

from .distributions import normal_quantile, t_cdf, t_quantile
from .estimates import Interval, holm, restarts_needed, signed_rank_p, t_interval, t_p

__all__ = [
    "Interval",
    "holm",
    "normal_quantile",
    "restarts_needed",
    "signed_rank_p",
    "t_cdf",
    "t_interval",
    "t_p",
    "t_quantile",
]
