"""Small parts that all modules use: checks of numbers, schedules, keys, weights, eigenvalues, tables for notebooks."""

from mfpda.core.keys import as_key
from mfpda.core.notebook import html_table
from mfpda.core.schedules import Schedule, check_share, positive, positive_count
from mfpda.core.spectrum import largest_eigenvalue, largest_of_symmetric
from mfpda.core.weights import ess_fraction, largest_step, systematic
