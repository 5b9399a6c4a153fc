"""How good a law is: the certificate, estimators of entropy and KL, the Stein test."""

from mfpda.judging.certificate import Certificate
from mfpda.judging.stein import SteinTest, stein_test
