"""How good a law is: the certificate, estimators of entropy and KL, the Stein test."""
