"""How good a law is: the certificate, estimators of entropy and KL, the Stein test."""

from mfpda.judging.certificate import Certificate
from mfpda.judging.certify import Target, certify, part_of_error
from mfpda.judging.replicates import drawn
from mfpda.judging.stein import SteinTest, stein_test
